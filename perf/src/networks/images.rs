//! The networks on images: ResNet-50 (with strides in its 3 by 3 convolutions), DenseNet-121,
//! MobileNet V2 and VGG-16, each with 1,000 classes.

use super::NetworkSize;
use super::builder::{Convolution, Layer, NetworkBuilder};
use super::onnx_file::OnnxAttribute;

/// The classes.
const CLASSES: usize = 1_000;

/// The rate by which a residual branch is weakened, so that many of them do not add up to more than
/// half precision has.
const RESIDUAL: f32 = 0.2;

pub(super) fn resnet50(builder: &mut NetworkBuilder, size: NetworkSize) -> Layer {
    let x = resnet50_prefix(builder, size);
    builder.connected(&x, CLASSES)
}

/// ResNet-50 without its last layer.
pub(super) fn resnet50_prefix(builder: &mut NetworkBuilder, size: NetworkSize) -> Layer {
    let x = stem(builder, size);
    let mut x = builder.pool("MaxPool", &x, [3, 2, 1]);
    for (stage, blocks) in [3, 4, 6, 3].into_iter().enumerate() {
        let width = size.width(64 << stage);
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            x = bottleneck(builder, &x, width, stride);
        }
    }
    builder.mean_of_images(&x)
}

/// What stands behind [`resnet50_prefix`] in a variant with so many connected layers of its own.
pub(super) fn resnet50_head<const LAYERS: usize>(builder: &mut NetworkBuilder, size: NetworkSize) -> Layer {
    let mut x = builder.features(4 * size.width(512));
    for _ in 1..LAYERS {
        let hidden = builder.connected(&x, x.channels);
        x = builder.relu(&hidden);
    }
    builder.connected(&x, CLASSES)
}

fn stem(builder: &mut NetworkBuilder, size: NetworkSize) -> Layer {
    let images = builder.images(size.image());
    builder.convolution_block(&images, Convolution::new(size.width(64), 7).by(2))
}

fn bottleneck(builder: &mut NetworkBuilder, x: &Layer, width: usize, stride: usize) -> Layer {
    let branch = builder.convolution_block(x, Convolution::new(width, 1));
    let branch = builder.convolution_block(&branch, Convolution::new(width, 3).by(stride));
    let branch = builder.convolution(&branch, Convolution::new(4 * width, 1), false);
    let branch = builder.batch_norm(&branch, RESIDUAL);
    let kept = if x.channels == 4 * width && stride == 1 {
        x.clone()
    } else {
        let convolved = builder.convolution(x, Convolution::new(4 * width, 1).by(stride), false);
        builder.batch_norm(&convolved, 1.0)
    };
    let sum = builder.node("Add", &[&branch.name, &kept.name], Vec::new());
    builder.relu(&Layer { name: sum, channels: 4 * width })
}

pub(super) fn densenet121(builder: &mut NetworkBuilder, size: NetworkSize) -> Layer {
    let growth = size.width(32);
    let x = stem(builder, size);
    let mut x = builder.pool("MaxPool", &x, [3, 2, 1]);
    for (block, layers) in [6, 12, 24, 16].into_iter().enumerate() {
        for _ in 0..layers {
            let added = normed(builder, &x);
            let added = builder.convolution_block(&added, Convolution::new(4 * growth, 1));
            let added = builder.convolution(&added, Convolution::new(growth, 3), false);
            let axis = vec![OnnxAttribute::of_integer("axis", 1)];
            let name = builder.node("Concat", &[&x.name, &added.name], axis);
            x = Layer { name, channels: x.channels + growth };
        }
        if block < 3 {
            let halved = normed(builder, &x);
            let halved = builder.convolution(&halved, Convolution::new(x.channels / 2, 1), false);
            x = builder.pool("AveragePool", &halved, [2, 2, 0]);
        }
    }
    let x = normed(builder, &x);
    let x = builder.mean_of_images(&x);
    builder.connected(&x, CLASSES)
}

fn normed(builder: &mut NetworkBuilder, x: &Layer) -> Layer {
    let normed = builder.batch_norm(x, 1.0);
    builder.relu(&normed)
}

pub(super) fn mobilenet_v2(builder: &mut NetworkBuilder, size: NetworkSize) -> Layer {
    /// The factor by which channels are widened inside, channels, blocks and the first stride.
    const STAGES: [[usize; 4]; 7] = [
        [1, 16, 1, 1],
        [6, 24, 2, 2],
        [6, 32, 3, 2],
        [6, 64, 4, 2],
        [6, 96, 3, 1],
        [6, 160, 3, 2],
        [6, 320, 1, 1],
    ];
    let images = builder.images(size.image());
    let mut x = clipped(builder, &images, Convolution::new(size.width(32), 3).by(2));
    for [factor, channels, blocks, first_stride] in STAGES {
        for block in 0..blocks {
            let stride = if block == 0 { first_stride } else { 1 };
            x = inverted_residual(builder, &x, [factor, size.width(channels), stride]);
        }
    }
    let x = clipped(builder, &x, Convolution::new(size.width(1_280), 1));
    let x = builder.mean_of_images(&x);
    builder.connected(&x, CLASSES)
}

fn inverted_residual(
    builder: &mut NetworkBuilder,
    x: &Layer,
    [factor, channels, stride]: [usize; 3],
) -> Layer {
    let wide = x.channels * factor;
    let branch = if factor == 1 { x.clone() } else { clipped(builder, x, Convolution::new(wide, 1)) };
    let depthwise = Convolution { groups: wide, ..Convolution::new(wide, 3).by(stride) };
    let branch = clipped(builder, &branch, depthwise);
    let branch = builder.convolution(&branch, Convolution::new(channels, 1), false);
    let branch = builder.batch_norm(&branch, 1.0);
    if stride == 2 || x.channels != channels {
        return branch;
    }
    let sum = builder.node("Add", &[&branch.name, &x.name], Vec::new());
    Layer { name: sum, channels }
}

/// Adds a convolution with a batch norm and a rectifier that ends at 6.
fn clipped(builder: &mut NetworkBuilder, x: &Layer, form: Convolution) -> Layer {
    let convolved = builder.convolution(x, form, false);
    let normed = builder.batch_norm(&convolved, 1.0);
    let (least, most) = (builder.number(0.0), builder.number(6.0));
    let name = builder.node("Clip", &[&normed.name, &least, &most], Vec::new());
    Layer { name, channels: normed.channels }
}

pub(super) fn vgg16(builder: &mut NetworkBuilder, size: NetworkSize) -> Layer {
    let mut x = builder.images(size.image());
    for (channels, layers) in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)] {
        for _ in 0..layers {
            let convolved = builder.convolution(&x, Convolution::new(size.width(channels), 3), true);
            x = builder.relu(&convolved);
        }
        x = builder.pool("MaxPool", &x, [2, 2, 0]);
    }
    // Five pools have halved the image.
    let pixels = (size.image() / 32).pow(2);
    let flat = builder.node("Flatten", &[&x.name], Vec::new());
    let mut x = Layer { name: flat, channels: x.channels * pixels };
    for _ in 0..2 {
        let connected = builder.connected(&x, size.width(4_096));
        x = builder.relu(&connected);
    }
    builder.connected(&x, CLASSES)
}

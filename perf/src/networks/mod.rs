//! Networks of real architectures and sizes with weights from a seed, as ONNX files: for
//! measurements of a card, where weights need not be trained but the work has to be real, and where
//! hundreds of megabytes of weights can't be brought along. `gpu networks` writes them.
//!
//! A small form of each has the same layers with few channels on small images, for a device that is
//! slow or none.

mod bert;
mod builder;
mod images;
mod onnx_file;

use builder::{Layer, NetworkBuilder};

/// The size of a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetworkSize {
    /// The architecture as published.
    Full,
    /// An eighth of the channels, on images of 32 by 32; BERT with two layers of 48 on 16 tokens.
    Small,
}

impl NetworkSize {
    fn width(self, channels: usize) -> usize {
        match self {
            NetworkSize::Full => channels,
            NetworkSize::Small => (channels / 8).max(4),
        }
    }

    fn image(self) -> usize {
        match self {
            NetworkSize::Full => 224,
            NetworkSize::Small => 32,
        }
    }
}

/// An architecture.
#[derive(Clone, Copy)]
pub struct Network {
    /// The name, that of its file.
    pub name: &'static str,
    /// The number of its parameters as published.
    pub parameters: u64,
    build: fn(&mut NetworkBuilder, NetworkSize) -> Layer,
}

/// The networks.
pub const NETWORKS: [Network; 5] = [
    Network { name: "resnet50", parameters: 25_557_032, build: images::resnet50 },
    Network { name: "densenet121", parameters: 7_978_856, build: images::densenet121 },
    Network { name: "mobilenet_v2", parameters: 3_504_872, build: images::mobilenet_v2 },
    Network { name: "vgg16", parameters: 138_357_544, build: images::vgg16 },
    Network { name: "bert_base", parameters: 109_482_240, build: bert::bert_base },
];

/// ResNet-50 without its last layer, and what stands behind that in variants of it (Nexus, Figure
/// 15): one, two or three fully connected layers.
pub const RESNET50_PARTS: [Network; 4] = [
    Network { name: "resnet50_prefix", parameters: 23_508_032, build: images::resnet50_prefix },
    Network { name: "head_1_fc", parameters: 2_049_000, build: images::resnet50_head::<1> },
    Network { name: "head_2_fc", parameters: 6_245_352, build: images::resnet50_head::<2> },
    Network { name: "head_3_fc", parameters: 10_441_704, build: images::resnet50_head::<3> },
];

impl Network {
    /// Returns the ONNX file of the network with the weights of a seed, and the number of its
    /// parameters.
    pub fn file(&self, size: NetworkSize, seed: u64) -> (Vec<u8>, u64) {
        let mut builder = NetworkBuilder::new(self.name, seed);
        let output = (self.build)(&mut builder, size);
        builder.finish(&output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_as_many_parameters_as_published() {
        for network in NETWORKS.into_iter().chain(RESNET50_PARTS) {
            let (file, parameters) = network.file(NetworkSize::Full, 1);
            assert_eq!(parameters, network.parameters, "{}", network.name);
            assert!(file.len() as u64 > 4 * parameters);
        }
    }

    #[test]
    fn a_seed_gives_the_same_bytes_and_another_one_others() {
        let of_seed = |seed| NETWORKS[0].file(NetworkSize::Small, seed).0;
        assert_eq!(of_seed(1), of_seed(1));
        assert_ne!(of_seed(1), of_seed(2));
    }
}

//! A network that is put together layer by layer, with weights from a seed: of the size at which
//! values stay in the range of half precision, as in a trained one.

use super::onnx_file::{
    FLOAT, INT64, ModelFile, OnnxAttribute, OnnxGraph, OnnxNode, OnnxPort, OnnxTensor, OperatorSet,
};
use prost::Message;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

/// The version of ONNX's operators.
const OPERATORS: i64 = 20;

/// A network under construction.
pub(super) struct NetworkBuilder {
    graph: OnnxGraph,
    random: Pcg64Mcg,
    parameters: u64,
    /// The number of names given out.
    names: usize,
}

/// A convolution's form.
#[derive(Clone, Copy)]
pub(super) struct Convolution {
    pub(super) channels: usize,
    pub(super) size: usize,
    pub(super) stride: usize,
    pub(super) groups: usize,
}

impl Convolution {
    /// Makes a convolution of all channels that keeps the image's size.
    pub(super) fn new(channels: usize, size: usize) -> Convolution {
        Convolution { channels, size, stride: 1, groups: 1 }
    }

    pub(super) fn by(self, stride: usize) -> Convolution {
        Convolution { stride, ..self }
    }
}

/// A tensor of the network, and its channels.
#[derive(Clone, PartialEq)]
pub(super) struct Layer {
    pub(super) name: String,
    pub(super) channels: usize,
}

impl NetworkBuilder {
    pub(super) fn new(name: &str, seed: u64) -> NetworkBuilder {
        let graph = OnnxGraph { name: name.to_owned(), ..OnnxGraph::default() };
        NetworkBuilder { graph, random: Pcg64Mcg::new(u128::from(seed) << 1 | 1), parameters: 0, names: 0 }
    }

    /// Adds an input of images.
    pub(super) fn images(&mut self, size: usize) -> Layer {
        self.graph.inputs.push(OnnxPort::of_rows("images", FLOAT, &[3, size, size]));
        Layer { name: "images".to_owned(), channels: 3 }
    }

    /// Adds an input of vectors.
    pub(super) fn features(&mut self, channels: usize) -> Layer {
        self.graph.inputs.push(OnnxPort::of_rows("features", FLOAT, &[channels]));
        Layer { name: "features".to_owned(), channels }
    }

    /// Adds an input of whole numbers.
    pub(super) fn numbers(&mut self, name: &str, row: &[usize]) -> String {
        self.graph.inputs.push(OnnxPort::of_rows(name, INT64, row));
        name.to_owned()
    }

    fn name(&mut self, of: &str) -> String {
        self.names += 1;
        format!("{of}{}", self.names)
    }

    /// Adds a node and returns its output's name.
    pub(super) fn node(&mut self, operator: &str, inputs: &[&str], attributes: Vec<OnnxAttribute>) -> String {
        let name = self.name(&operator.to_lowercase());
        self.graph.nodes.push(OnnxNode {
            inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
            outputs: vec![name.clone()],
            name: name.clone(),
            operator: operator.to_owned(),
            attributes,
        });
        name
    }

    fn tensor(&mut self, element: i32, shape: &[usize], content: Vec<u8>) -> String {
        let (name, shape) = (self.name("constant"), shape.iter().map(|&size| size as i64).collect());
        self.graph.constants.push(OnnxTensor { shape, element, name: name.clone(), content });
        name
    }

    /// Adds a constant of whole numbers.
    pub(super) fn whole(&mut self, values: &[i64]) -> String {
        let content = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(INT64, &[values.len()], content)
    }

    /// Adds a constant number.
    pub(super) fn number(&mut self, value: f32) -> String {
        self.tensor(FLOAT, &[], value.to_le_bytes().to_vec())
    }

    /// Adds weights around `mean` whose standard deviation is `deviation`: parameters that training
    /// would set.
    pub(super) fn weights(&mut self, shape: &[usize], mean: f32, deviation: f32) -> String {
        self.parameters += shape.iter().product::<usize>() as u64;
        self.values(shape, mean, deviation)
    }

    fn values(&mut self, shape: &[usize], mean: f32, deviation: f32) -> String {
        // That of a uniform distribution of this half width.
        let half = deviation * 3f32.sqrt();
        let count: usize = shape.iter().product();
        let mut content = Vec::with_capacity(count * 4);
        for _ in 0..count {
            let value = mean + half * (2.0 * self.random.random::<f32>() - 1.0);
            content.extend_from_slice(&value.to_le_bytes());
        }
        self.tensor(FLOAT, shape, content)
    }

    /// Adds a convolution, with a bias if `has_bias`.
    pub(super) fn convolution(&mut self, x: &Layer, form: Convolution, has_bias: bool) -> Layer {
        let Convolution { channels, size, stride, groups } = form;
        let depth = x.channels / groups;
        let deviation = (2.0 / (depth * size * size) as f32).sqrt();
        let weights = self.weights(&[channels, depth, size, size], 0.0, deviation);
        let bias = has_bias.then(|| self.weights(&[channels], 0.0, 0.01));
        let side = |value: usize| value as i64;
        let attributes = vec![
            OnnxAttribute::of_integers("kernel_shape", &[side(size); 2]),
            OnnxAttribute::of_integers("strides", &[side(stride); 2]),
            OnnxAttribute::of_integers("pads", &[side(size / 2); 4]),
            OnnxAttribute::of_integer("group", side(groups)),
        ];
        let inputs: Vec<&str> = [&x.name, &weights].into_iter().chain(&bias).map(String::as_str).collect();
        Layer { name: self.node("Conv", &inputs, attributes), channels }
    }

    /// Adds a batch norm that multiplies by about `scale`.
    pub(super) fn batch_norm(&mut self, x: &Layer, scale: f32) -> Layer {
        let shape = [x.channels];
        let (gamma, beta) = (self.weights(&shape, scale, 0.05 * scale), self.weights(&shape, 0.0, 0.05));
        // Training counts them and does not set them.
        let (mean, variance) = (self.values(&shape, 0.0, 0.05), self.values(&shape, 1.0, 0.05));
        let inputs = [&x.name, &gamma, &beta, &mean, &variance].map(String::as_str);
        let name = self.node("BatchNormalization", &inputs, vec![OnnxAttribute::of_float("epsilon", 1e-5)]);
        Layer { name, channels: x.channels }
    }

    pub(super) fn relu(&mut self, x: &Layer) -> Layer {
        Layer { name: self.node("Relu", &[&x.name], Vec::new()), channels: x.channels }
    }

    /// Adds a convolution with a batch norm and a rectifier.
    pub(super) fn convolution_block(&mut self, x: &Layer, form: Convolution) -> Layer {
        let convolved = self.convolution(x, form, false);
        let normed = self.batch_norm(&convolved, 1.0);
        self.relu(&normed)
    }

    /// Adds a pool of this operator.
    pub(super) fn pool(&mut self, operator: &str, x: &Layer, [size, stride, pad]: [i64; 3]) -> Layer {
        let attributes = vec![
            OnnxAttribute::of_integers("kernel_shape", &[size; 2]),
            OnnxAttribute::of_integers("strides", &[stride; 2]),
            OnnxAttribute::of_integers("pads", &[pad; 4]),
        ];
        Layer { name: self.node(operator, &[&x.name], attributes), channels: x.channels }
    }

    /// Adds a fully connected layer with a bias, on what has `x.channels` elements a row.
    pub(super) fn connected(&mut self, x: &Layer, channels: usize) -> Layer {
        let deviation = (1.0 / x.channels as f32).sqrt();
        let weights = self.weights(&[channels, x.channels], 0.0, deviation);
        let bias = self.weights(&[channels], 0.0, 0.01);
        let transposed = vec![OnnxAttribute::of_integer("transB", 1)];
        Layer { name: self.node("Gemm", &[&x.name, &weights, &bias], transposed), channels }
    }

    /// Adds the mean over each image.
    pub(super) fn mean_of_images(&mut self, x: &Layer) -> Layer {
        let pooled = self.node("GlobalAveragePool", &[&x.name], Vec::new());
        Layer { name: self.node("Flatten", &[&pooled], Vec::new()), channels: x.channels }
    }

    /// Ends the network in this output, whose rows are vectors. Returns the file and the number of
    /// parameters.
    pub(super) fn finish(mut self, output: &Layer) -> (Vec<u8>, u64) {
        let port = OnnxPort::of_rows(&output.name, FLOAT, &[output.channels]);
        self.graph.outputs.push(port);
        let operators = OperatorSet { domain: String::new(), version: OPERATORS };
        let file = ModelFile {
            ir_version: 9,
            producer_name: "symphony".to_owned(),
            graph: Some(self.graph),
            operator_sets: vec![operators],
        };
        (file.encode_to_vec(), self.parameters)
    }
}

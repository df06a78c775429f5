//! BERT-base on 128 tokens, with the pooled output of the first.

use super::NetworkSize;
use super::builder::{Layer, NetworkBuilder};
use super::onnx_file::OnnxAttribute;

/// The tokens of a row.
const TOKENS: usize = 128;

/// The standard deviation of the weights, as BERT is initialised with.
const DEVIATION: f32 = 0.02;

/// The sizes of the network.
struct BertSize {
    tokens: usize,
    layers: usize,
    heads: usize,
    hidden: usize,
    words: usize,
}

pub(super) fn bert_base(builder: &mut NetworkBuilder, size: NetworkSize) -> Layer {
    let sizes = match size {
        NetworkSize::Full => BertSize { tokens: TOKENS, layers: 12, heads: 12, hidden: 768, words: 30_522 },
        NetworkSize::Small => BertSize { tokens: 16, layers: 2, heads: 3, hidden: 48, words: 100 },
    };
    let ids = builder.numbers("input_ids", &[sizes.tokens]);
    let mut x = embedded(builder, &ids, &sizes);
    for _ in 0..sizes.layers {
        let attended = attention(builder, &x, &sizes);
        x = added_and_normed(builder, &x, &attended, sizes.hidden);
        let inner = product(builder, &x, [sizes.hidden, 4 * sizes.hidden]);
        let inner = builder.node("Gelu", &[&inner], Vec::new());
        let inner = product(builder, &inner, [4 * sizes.hidden, sizes.hidden]);
        x = added_and_normed(builder, &x, &inner, sizes.hidden);
    }
    let first = builder.whole(&[0]);
    let pooled = builder.node("Gather", &[&x, &first], vec![OnnxAttribute::of_integer("axis", 1)]);
    let pooled = builder.node("Flatten", &[&pooled], Vec::new());
    let pooled = builder.connected(&Layer { name: pooled, channels: sizes.hidden }, sizes.hidden);
    Layer { name: builder.node("Tanh", &[&pooled.name], Vec::new()), channels: sizes.hidden }
}

/// Adds the embeddings of words, of their positions and of the one segment.
fn embedded(builder: &mut NetworkBuilder, ids: &str, sizes: &BertSize) -> String {
    let table = |builder: &mut NetworkBuilder, rows| builder.weights(&[rows, sizes.hidden], 0.0, 1.0);
    let words = table(builder, sizes.words);
    let words = builder.node("Gather", &[&words, ids], Vec::new());
    let positions = table(builder, 512);
    let places: Vec<i64> = (0..sizes.tokens as i64).collect();
    let places = builder.whole(&places);
    let positions = builder.node("Gather", &[&positions, &places], Vec::new());
    let (segments, first) = (table(builder, 2), builder.whole(&[0]));
    let segment = builder.node("Gather", &[&segments, &first], Vec::new());
    let sum = builder.node("Add", &[&words, &positions], Vec::new());
    added_and_normed(builder, &sum, &segment, sizes.hidden)
}

fn attention(builder: &mut NetworkBuilder, x: &str, sizes: &BertSize) -> String {
    let &BertSize { tokens, heads, hidden, .. } = sizes;
    let of_head = hidden / heads;
    let split = [0, tokens as i64, heads as i64, of_head as i64];
    let projected = |builder: &mut NetworkBuilder, order: [i64; 4]| {
        let projection = product(builder, x, [hidden, hidden]);
        let split = builder.whole(&split);
        let projection = builder.node("Reshape", &[&projection, &split], Vec::new());
        builder.node("Transpose", &[&projection], vec![OnnxAttribute::of_integers("perm", &order)])
    };
    let query = projected(builder, [0, 2, 1, 3]);
    let key = projected(builder, [0, 2, 3, 1]);
    let value = projected(builder, [0, 2, 1, 3]);
    let scores = builder.node("MatMul", &[&query, &key], Vec::new());
    let scale = builder.number(1.0 / (of_head as f32).sqrt());
    let scores = builder.node("Mul", &[&scores, &scale], Vec::new());
    let weights = builder.node("Softmax", &[&scores], vec![OnnxAttribute::of_integer("axis", -1)]);
    let mixed = builder.node("MatMul", &[&weights, &value], Vec::new());
    let order = vec![OnnxAttribute::of_integers("perm", &[0, 2, 1, 3])];
    let mixed = builder.node("Transpose", &[&mixed], order);
    let joined = builder.whole(&[0, tokens as i64, hidden as i64]);
    let mixed = builder.node("Reshape", &[&mixed, &joined], Vec::new());
    product(builder, &mixed, [hidden, hidden])
}

/// Adds a product with weights, and a bias.
fn product(builder: &mut NetworkBuilder, x: &str, [from, to]: [usize; 2]) -> String {
    let (weights, bias) =
        (builder.weights(&[from, to], 0.0, DEVIATION), builder.weights(&[to], 0.0, DEVIATION));
    let product = builder.node("MatMul", &[x, &weights], Vec::new());
    builder.node("Add", &[&product, &bias], Vec::new())
}

fn added_and_normed(builder: &mut NetworkBuilder, x: &str, y: &str, hidden: usize) -> String {
    let sum = builder.node("Add", &[x, y], Vec::new());
    let (scale, bias) = (builder.weights(&[hidden], 1.0, 0.05), builder.weights(&[hidden], 0.0, 0.05));
    let attributes = vec![OnnxAttribute::of_integer("axis", -1), OnnxAttribute::of_float("epsilon", 1e-12)];
    builder.node("LayerNormalization", &[&sum, &scale, &bias], attributes)
}

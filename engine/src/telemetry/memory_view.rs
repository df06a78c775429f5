//! The memory of the process's GPUs as the dashboard's JSON has it.

use super::history::HISTORY_MODELS;
use crate::runtime::gpu_memory::{GpuPages, WeightsPages};
use serde::Serialize;

/// The number of GPUs that are shown one by one.
pub(super) const LANES: usize = 64;

/// The pages of a GPU.
#[derive(Serialize)]
pub(super) struct PagesView {
    gpu: u32,
    page_bytes: usize,
    pages: u32,
    free: u32,
    shared: u32,
    /// The reason why it was taken out.
    lost: Option<String>,
    /// The models on it, [`HISTORY_MODELS`] at most.
    models: Vec<ModelPagesView>,
}

#[derive(Serialize)]
struct ModelPagesView {
    id: u32,
    name: String,
    pages: u32,
    held: u32,
    state: &'static str,
}

/// Returns the pages of the first GPUs, [`LANES`] at most; `name` tells a model's name by its slot.
pub(super) fn pages(gpus: &[GpuPages], name: impl Fn(u32) -> Option<String>) -> Vec<PagesView> {
    let model = |of: &WeightsPages| {
        let (id, state) = (of.model.0, of.state_name());
        Some(ModelPagesView { id, name: name(id)?, pages: of.needed, held: of.held, state })
    };
    let gpu = |of: &GpuPages| PagesView {
        gpu: of.gpu.0,
        page_bytes: of.counts.page_bytes,
        pages: of.counts.total,
        free: of.counts.free,
        shared: of.shared,
        lost: of.lost.clone(),
        models: of.models.iter().take(HISTORY_MODELS).filter_map(model).collect(),
    };
    gpus.iter().take(LANES).map(gpu).collect()
}

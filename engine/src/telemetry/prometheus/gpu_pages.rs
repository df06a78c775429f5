//! The memory of the process's GPUs, as Prometheus text. The names are listed in docs/metrics.md.

use super::exposition::{Exposition, MetricKind};
use crate::runtime::frontend::ModelInfo;
use crate::runtime::gpu_memory::{GpuPages, WeightsPages};
use symphony_gpu::cuda::WeightsState;

/// A family of one number per GPU: its name, its help, and its value.
type PagesFamily = (&'static str, &'static str, fn(&GpuPages) -> u64);

const OF_GPUS: [PagesFamily; 5] = [
    ("symphony_gpu_pages", "Pages of a GPU's memory.", |of| u64::from(of.counts.total)),
    ("symphony_gpu_free_pages", "Pages that nothing uses.", |of| u64::from(of.counts.free)),
    ("symphony_gpu_shared_pages", "Pages of the workspace and the rows, which all models share.", |of| {
        u64::from(of.shared)
    }),
    ("symphony_gpu_page_bytes", "The size of a page.", |of| of.counts.page_bytes as u64),
    ("symphony_gpu_lost", "1 if the GPU was taken out.", |of| u64::from(of.lost.is_some())),
];

/// Adds the pages of these GPUs and of the models on them; nothing if there are none.
pub(super) fn write(text: &mut Exposition, gpus: &[GpuPages], table: &[ModelInfo]) {
    if gpus.is_empty() {
        return;
    }
    for (name, help, value) in OF_GPUS {
        text.family(name, MetricKind::Gauge, help);
        for of in gpus {
            text.sample(&[("gpu", &of.gpu.0.to_string())], value(of));
        }
    }
    let help = "Pages that a model's weights have on a GPU.";
    text.family("symphony_model_pages", MetricKind::Gauge, help);
    of_models(text, gpus, table, |of| of.held);
    let help = "1 if a model's weights are on a GPU, so that it runs there.";
    text.family("symphony_model_loaded", MetricKind::Gauge, help);
    of_models(text, gpus, table, |of| u32::from(of.state == WeightsState::Loaded));
}

fn of_models(
    text: &mut Exposition,
    gpus: &[GpuPages],
    table: &[ModelInfo],
    value: impl Fn(&WeightsPages) -> u32,
) {
    for gpu in gpus {
        let number = gpu.gpu.0.to_string();
        for of in &gpu.models {
            let Some(model) = table.get(of.model.0 as usize) else { continue };
            let (label, version) = (model.label(), model.version.to_string());
            text.sample(&[("model", &label), ("version", &version), ("gpu", &number)], value(of));
        }
    }
}

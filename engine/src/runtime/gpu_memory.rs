//! The memory of the process's GPUs, as others than their backend threads see it: the pages of
//! each, and whose weights are where. Reading it waits for no LOAD and no batch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use symphony_gpu::cuda::{CudaDevice, DeviceWeights, PageCounts, WeightsState};
use symphony_gpu::{CudaModel, HostModel};
use symphony_transport::message::{GpuId, ModelId};

/// A GPU of the process, with the models that its backend thread has. Others know a model by its
/// weights, which go with it.
pub struct ServedGpu {
    number: GpuId,
    device: Arc<CudaDevice>,
    models: Mutex<BTreeMap<ModelId, Weak<DeviceWeights>>>,
}

/// The weights of a model on a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WeightsPages {
    /// The model's slot: the first one, where several have the same weights.
    pub model: ModelId,
    /// The pages that they need.
    pub needed: u32,
    /// The pages that they have at the moment.
    pub held: u32,
    /// Where they are.
    pub state: WeightsState,
}

/// The memory of a GPU at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuPages {
    /// The engine's number of the GPU.
    pub gpu: GpuId,
    /// The GPU's name, as its driver says it.
    pub name: String,
    /// The GPU's pages.
    pub counts: PageCounts,
    /// The pages of no model: the workspace and the rows of batches, which all models share.
    pub shared: u32,
    /// Why it was taken out, if it was.
    pub lost: Option<String>,
    /// The GPU's models, by their slots.
    pub models: Vec<WeightsPages>,
}

impl WeightsPages {
    /// Returns the name in the API of where they are.
    pub fn state_name(&self) -> &'static str {
        match self.state {
            WeightsState::Unloaded => "unloaded",
            WeightsState::Loading => "loading",
            WeightsState::Loaded => "loaded",
            WeightsState::Unloading => "unloading",
        }
    }
}

impl ServedGpu {
    /// Returns the engine's number of the GPU.
    pub fn number(&self) -> GpuId {
        self.number
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<ModelId, Weak<DeviceWeights>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a slot gets this model, or none.
    pub(crate) fn note(&self, slot: usize, model: Option<&dyn HostModel>) {
        let model = model.and_then(|model| (model as &dyn std::any::Any).downcast_ref::<CudaModel>());
        let slot = ModelId(slot as u32);
        match model {
            Some(model) => drop(self.table().insert(slot, Arc::downgrade(model.weights()))),
            None => drop(self.table().remove(&slot)),
        }
    }

    /// Returns the weights of its models, each once, with the first slot that has them.
    pub fn weights(&self) -> Vec<(ModelId, Arc<DeviceWeights>)> {
        let mut found: Vec<(ModelId, Arc<DeviceWeights>)> = Vec::new();
        for (&slot, weights) in &*self.table() {
            let Some(weights) = weights.upgrade() else { continue };
            if found.iter().all(|(_, other)| !Arc::ptr_eq(other, &weights)) {
                found.push((slot, weights));
            }
        }
        found
    }

    /// Returns the weights of the model of a slot.
    pub fn weights_of(&self, slot: ModelId) -> Option<Arc<DeviceWeights>> {
        self.table().get(&slot)?.upgrade()
    }

    /// Returns its memory at the moment.
    pub fn pages(&self) -> GpuPages {
        let models: Vec<WeightsPages> = self
            .weights()
            .into_iter()
            .map(|(model, weights)| WeightsPages {
                model,
                needed: weights.pages(),
                held: weights.held_pages(),
                state: weights.state(),
            })
            .collect();
        let counts = self.device.pages();
        let of_models: u32 = models.iter().map(|of| of.held).sum();
        GpuPages {
            gpu: self.number,
            name: self.device.open.calls().facts().name.clone(),
            counts,
            shared: (counts.total - counts.free).saturating_sub(of_models),
            lost: self.device.open.lost().map(str::to_owned),
            models,
        }
    }
}

/// The memory of all GPUs of the process. See the module's description.
#[derive(Default)]
pub struct ServedGpus {
    gpus: Mutex<Vec<Arc<ServedGpu>>>,
}

impl std::fmt::Debug for ServedGpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServedGpus").field("gpus", &self.gpus().len()).finish()
    }
}

impl ServedGpus {
    fn table(&self) -> MutexGuard<'_, Vec<Arc<ServedGpu>>> {
        self.gpus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a GPU, by the engine's number of it. All are there once the engine has started.
    pub(crate) fn add(&self, number: u32, device: &Arc<CudaDevice>) -> Arc<ServedGpu> {
        let gpu = Arc::new(ServedGpu {
            number: GpuId(number),
            device: Arc::clone(device),
            models: Mutex::default(),
        });
        let mut gpus = self.table();
        gpus.push(Arc::clone(&gpu));
        gpus.sort_by_key(|gpu| gpu.number.0);
        gpu
    }

    /// Returns the GPUs, by the engine's numbers.
    pub fn gpus(&self) -> Vec<Arc<ServedGpu>> {
        self.table().clone()
    }

    /// Returns a GPU by the engine's number of it; `None` if the process has none of that number.
    pub(crate) fn get(&self, number: u32) -> Option<Arc<ServedGpu>> {
        self.table().iter().find(|gpu| gpu.number == GpuId(number)).cloned()
    }

    /// Returns the memory of each GPU at the moment.
    pub fn pages(&self) -> Vec<GpuPages> {
        self.gpus().iter().map(|gpu| gpu.pages()).collect()
    }

    /// Returns true if the model of a slot runs on GPUs and its weights are on none of them.
    pub fn is_unloaded(&self, slot: ModelId) -> bool {
        let weights: Vec<_> = self.gpus().iter().filter_map(|gpu| gpu.weights_of(slot)).collect();
        !weights.is_empty() && weights.iter().all(|weights| !weights.is_there())
    }
}

//! The ids of an engine's per-class queues: for each model slot a queue for each class of its
//! requests. The scheduler schedules queues; backends, frontends and counters have models. The
//! queues of the highest class have their models' numbers: `queue = model + class * slots`.

use std::sync::Arc;
use symphony_transport::message::{Class, ModelId, QueueId};

/// The ids of the per-class queues of an engine's model slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueIds {
    slots: u32,
}

impl QueueIds {
    /// Returns the ids of the queues of `slots` model slots.
    pub fn new(slots: usize) -> QueueIds {
        QueueIds { slots: slots as u32 }
    }

    /// Returns the number of queues.
    pub fn count(self) -> usize {
        self.slots as usize * Class::COUNT
    }

    /// Returns the queue of a model's requests of this class.
    #[inline]
    pub fn of(self, model: ModelId, class: Class) -> QueueId {
        QueueId(model.0 + u32::from(class.number()) * self.slots)
    }

    /// Returns the model of a queue.
    #[inline]
    pub fn model(self, queue: QueueId) -> ModelId {
        ModelId(queue.0 % self.slots.max(1))
    }

    /// Returns the class of a queue's requests.
    #[inline]
    pub fn class(self, queue: QueueId) -> Class {
        Class::new((queue.0 / self.slots.max(1)) as u8).unwrap_or(Class::LOWEST)
    }

    /// Returns the classes of a model's queues, highest first.
    pub fn classes() -> impl Iterator<Item = Class> + Clone {
        (0..Class::COUNT as u8).filter_map(Class::new)
    }

    /// Returns the class of each queue.
    pub fn class_of_each(self) -> Vec<Class> {
        QueueIds::classes().flat_map(|class| std::iter::repeat_n(class, self.slots as usize)).collect()
    }

    /// Returns the element of each queue's model, queue by queue.
    pub fn each<T: Clone>(self, of_models: &[T]) -> Arc<[T]> {
        debug_assert_eq!(of_models.len(), self.slots as usize);
        std::iter::repeat_n(of_models, Class::COUNT).flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_of_its_model_and_of_its_class() {
        let ids = QueueIds::new(5);
        let classes = ids.class_of_each();
        assert_eq!((ids.count(), classes.len()), (20, 20));
        for model in (0..5).map(ModelId) {
            assert_eq!(ids.of(model, Class::HIGHEST), QueueId(model.0));
            for class in QueueIds::classes() {
                let queue = ids.of(model, class);
                assert_eq!((ids.model(queue), ids.class(queue)), (model, class));
                assert_eq!(classes[queue.0 as usize], class);
            }
        }
        assert_eq!(ids.each(&[1, 2, 3, 4, 5])[4..7], [5, 1, 2]);
    }
}

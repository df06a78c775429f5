//! How an engine numbers its lanes: for each place of a model a queue for each class of its
//! requests. To the scheduler a lane is a model of its own; backends, frontends and counters know
//! models. The lanes of the highest class have their models' numbers, so where there are no others
//! nothing differs.

use std::sync::Arc;
use symphony_transport::message::{Class, ModelId};

/// The lanes of so many places for models.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueIds {
    places: u32,
}

impl QueueIds {
    /// Of so many places for models.
    pub fn new(places: usize) -> QueueIds {
        QueueIds { places: places as u32 }
    }

    /// How many there are.
    pub fn count(self) -> usize {
        self.places as usize * Class::COUNT
    }

    /// The lane of a model's requests of this class.
    #[inline]
    pub fn of(self, model: ModelId, class: Class) -> ModelId {
        ModelId(model.0 + u32::from(class.number()) * self.places)
    }

    /// The model whose lane it is.
    #[inline]
    pub fn model(self, lane: ModelId) -> ModelId {
        ModelId(lane.0 % self.places.max(1))
    }

    /// The class of its requests.
    #[inline]
    pub fn class(self, lane: ModelId) -> Class {
        Class::new((lane.0 / self.places.max(1)) as u8).unwrap_or(Class::LOWEST)
    }

    /// Each model's lanes, highest class first.
    pub fn classes() -> impl Iterator<Item = Class> + Clone {
        (0..Class::COUNT as u8).filter_map(Class::new)
    }

    /// The class of each lane.
    pub fn class_of_each(self) -> Vec<Class> {
        QueueIds::classes().flat_map(|class| std::iter::repeat_n(class, self.places as usize)).collect()
    }

    /// For each lane what there is for its model.
    pub fn each<T: Clone>(self, of_models: &[T]) -> Arc<[T]> {
        debug_assert_eq!(of_models.len(), self.places as usize);
        std::iter::repeat_n(of_models, Class::COUNT).flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_of_its_model_and_of_its_class() {
        let lanes = QueueIds::new(5);
        let classes = lanes.class_of_each();
        assert_eq!((lanes.count(), classes.len()), (20, 20));
        for model in (0..5).map(ModelId) {
            assert_eq!(lanes.of(model, Class::HIGHEST), model);
            for class in QueueIds::classes() {
                let lane = lanes.of(model, class);
                assert_eq!((lanes.model(lane), lanes.class(lane)), (model, class));
                assert_eq!(classes[lane.0 as usize], class);
            }
        }
        assert_eq!(lanes.each(&[1, 2, 3, 4, 5])[4..7], [5, 1, 2]);
    }
}

//! A tournament tree over a fixed set of keys: the RankThread's two indices, GPUs by free_at and waiting
//! models by latest, are one of these each, and the one-thread driver keeps its timers in a third.
//!
//! One exact structure answers both questions that matching asks: "which is the earliest" and "which is the
//! lowest-numbered that is early enough" (load packs onto low-numbered GPUs, so that the rest can be given
//! back). With 16 children to a node, 65,536 keys are four levels of two cache lines each: an update reads
//! and compares at most 64 values, a search the same.

use crate::clock::Nanos;

const FANOUT: usize = 16;

/// A minimum per group of 16, and of those, up to a root. Absent keys are [`Nanos::MAX`].
#[derive(Clone, Debug)]
pub struct MinTree {
    /// `levels[0]` are the keys, each level above holds the minima of groups of [`FANOUT`]; the last has one node, the
    /// root. Every other level is padded with `MAX` to whole groups.
    levels: Vec<Vec<Nanos>>,
}

impl MinTree {
    /// `len` keys, all absent.
    pub fn new(len: usize) -> MinTree {
        let mut levels = Vec::new();
        let mut width = len.max(1);
        while width > 1 || levels.is_empty() {
            width = width.next_multiple_of(FANOUT);
            levels.push(vec![Nanos::MAX; width]);
            width /= FANOUT;
        }
        levels.push(vec![Nanos::MAX]);
        MinTree { levels }
    }

    /// The key of `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Nanos {
        self.levels[0][index]
    }

    /// Sets the key of `index`; [`Nanos::MAX`] removes it. A group is only searched where its minimum has gone up.
    #[inline]
    pub fn set(&mut self, index: usize, key: Nanos) {
        let mut at = index;
        let mut value = key;
        for level in 0..self.levels.len() - 1 {
            let old = std::mem::replace(&mut self.levels[level][at], value);
            at /= FANOUT;
            let least = self.levels[level + 1][at];
            if value > least {
                if old > least {
                    return;
                }
                value = min_of(group(&self.levels[level], at));
            }
            if value == least {
                return;
            }
        }
        if let Some(root) = self.levels.last_mut() {
            root[0] = value;
        }
    }

    /// The smallest key and the lowest index that has it; `None` when every key is absent.
    #[inline]
    pub fn min(&self) -> Option<(Nanos, usize)> {
        let key = self.min_key();
        if key == Nanos::MAX { None } else { self.first_at_most(key).map(|index| (key, index)) }
    }

    /// The smallest key, [`Nanos::MAX`] when every key is absent.
    #[inline]
    pub fn min_key(&self) -> Nanos {
        self.levels[self.levels.len() - 1][0]
    }

    /// The lowest index whose key is at most `bound` and present.
    #[inline]
    pub fn first_at_most(&self, bound: Nanos) -> Option<usize> {
        let bound = bound.min(Nanos(u64::MAX - 1));
        if self.min_key() > bound {
            return None;
        }
        let mut at = 0;
        for level in self.levels[..self.levels.len() - 1].iter().rev() {
            at = at * FANOUT + group(level, at).iter().position(|&key| key <= bound)?;
        }
        Some(at)
    }
}

#[inline]
fn group(level: &[Nanos], at: usize) -> &[Nanos; FANOUT] {
    level[at * FANOUT..][..FANOUT].try_into().expect("levels are padded to whole groups")
}

#[inline]
fn min_of(keys: &[Nanos]) -> Nanos {
    keys.iter().copied().min().unwrap_or(Nanos::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_answers_as_a_plain_list_does(
            len in 1usize..700,
            steps in prop::collection::vec((any::<prop::sample::Index>(), 0u64..50, 0u64..50), 1..200),
        ) {
            let mut tree = MinTree::new(len);
            let mut list = vec![Nanos::MAX; len];
            for (index, key, bound) in steps {
                let index = index.index(len);
                let key = if key == 0 { Nanos::MAX } else { Nanos(key) };
                tree.set(index, key);
                list[index] = key;
                let least = *list.iter().min().unwrap();
                let expected = (least != Nanos::MAX)
                    .then(|| (least, list.iter().position(|&k| k == least).unwrap()));
                prop_assert_eq!(tree.min(), expected);
                prop_assert_eq!(tree.min_key(), least);
                prop_assert_eq!(
                    tree.first_at_most(Nanos(bound)),
                    list.iter().position(|&k| k <= Nanos(bound))
                );
            }
        }
    }

    #[test]
    fn an_absent_key_is_never_early_enough() {
        let tree = MinTree::new(300);
        assert_eq!(tree.first_at_most(Nanos::MAX), None);
        assert_eq!(tree.min(), None);
    }
}

//! A tournament tree over a fixed set of keys: the RankThread's two indices, GPUs by free_at and
//! waiting models by latest, are one of these each, and the one-thread driver keeps its timers in a
//! third.
//!
//! One exact structure answers both questions that matching asks: "which is the earliest" and
//! "which is the lowest-numbered that is early enough" (load packs onto low-numbered GPUs, so that
//! the rest can be given back). With 8 children to a node, a cache line each, 65,536 keys are six
//! levels: an update reads and compares at most 48 values, a search the same.

use alloc::boxed::Box;
use symphony_transport::Nanos;

const FANOUT: usize = 8;

/// Levels of a tree of 2^32 keys, root included: no tree has more.
const MAX_LEVELS: usize = 12;

/// A minimum per group of 8 keys, and of those, up to a root. Absent keys are [`Nanos::MAX`].
#[derive(Clone, Debug)]
pub struct MinTree {
    /// The keys, then the minima of their groups, and so on up to the root, which is the last. Each
    /// level but the root is padded with `MAX` to whole groups.
    keys: Box<[Nanos]>,
    /// Where each level begins.
    starts: [usize; MAX_LEVELS],
    /// The index of the root among them.
    root: usize,
}

impl MinTree {
    /// `len` keys, all absent.
    ///
    /// # Panics
    ///
    /// Where `len` is over 2^32.
    pub fn new(len: usize) -> MinTree {
        assert!(len <= 1 << 32, "a tree of {len} keys; the limit is 2^32");
        let mut starts = [0; MAX_LEVELS];
        let (mut root, mut total, mut width) = (0, 0, len.max(1));
        while width > 1 || root == 0 {
            width = width.next_multiple_of(FANOUT);
            total += width;
            root += 1;
            starts[root] = total;
            width /= FANOUT;
        }
        MinTree { keys: vec![Nanos::MAX; total + 1].into(), starts, root }
    }

    /// The key of `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Nanos {
        self.keys[index]
    }

    /// Sets the key of `index`; [`Nanos::MAX`] removes it. A group is only searched where its
    /// minimum has gone up.
    #[inline]
    pub fn set(&mut self, index: usize, key: Nanos) {
        debug_assert!(index < self.starts[1], "a key beyond the tree's");
        let (mut at, mut value) = (index, key);
        for level in 0..self.root {
            let start = self.starts[level];
            let old = core::mem::replace(&mut self.keys[start + at], value);
            at /= FANOUT;
            let least = self.keys[self.starts[level + 1] + at];
            if value > least {
                if old > least {
                    return;
                }
                value = min_of_group(self.group(start + at * FANOUT));
            }
            if value == least {
                return;
            }
        }
        self.keys[self.starts[self.root]] = value;
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
        self.keys[self.keys.len() - 1]
    }

    /// The smallest key of those whose index is below `end`, [`Nanos::MAX`] when all of them are
    /// absent.
    #[inline]
    pub fn min_key_before(&self, end: usize) -> Nanos {
        if end >= self.starts[1] {
            return self.min_key();
        }
        let (mut end, mut least) = (end, Nanos::MAX);
        for level in 0..self.root {
            let inside = end % FANOUT;
            least = least.min(min_of(&self.group(self.starts[level] + end - inside)[..inside]));
            end /= FANOUT;
        }
        least
    }

    /// The smallest key but for that of `index`; [`Nanos::MAX`] when all others are absent.
    #[inline]
    pub fn min_key_beside(&self, index: usize) -> Nanos {
        let (mut at, mut least) = (index, Nanos::MAX);
        for level in 0..self.root {
            let inside = at % FANOUT;
            let group = self.group(self.starts[level] + at - inside);
            least = least.min(min_of(&group[..inside])).min(min_of(&group[inside + 1..]));
            at /= FANOUT;
        }
        least
    }

    /// The lowest index whose key is at most `bound` and present.
    #[inline]
    pub fn first_at_most(&self, bound: Nanos) -> Option<usize> {
        let bound = bound.min(Nanos(u64::MAX - 1));
        if self.min_key() > bound {
            return None;
        }
        let mut at = 0;
        for level in (0..self.root).rev() {
            let group = self.group(self.starts[level] + at * FANOUT);
            at = at * FANOUT + group.iter().position(|&key| key <= bound)?;
        }
        Some(at)
    }

    /// The group that begins there.
    #[inline]
    fn group(&self, first: usize) -> &[Nanos; FANOUT] {
        self.keys[first..][..FANOUT].try_into().expect("levels are padded to whole groups")
    }
}

/// The minimum of a whole group: by pairs, of which a processor compares several at once.
#[inline]
fn min_of_group(keys: &[Nanos; FANOUT]) -> Nanos {
    let [a, b, c, d, e, f, g, h] = *keys;
    a.min(b).min(c.min(d)).min(e.min(f).min(g.min(h)))
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
                let end = bound as usize * len / 49;
                let least_before = list[..end].iter().copied().min().unwrap_or(Nanos::MAX);
                prop_assert_eq!(tree.min_key_before(end), least_before);
                let beside = list.iter().enumerate().filter(|&(other, _)| other != index);
                let least_beside = beside.map(|(_, &key)| key).min().unwrap_or(Nanos::MAX);
                prop_assert_eq!(tree.min_key_beside(index), least_beside);
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

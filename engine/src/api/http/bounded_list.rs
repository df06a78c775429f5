//! A list in JSON, bounded while it is read: an entry takes far more memory than its text.

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// A list of at most `MOST` entries.
pub(super) struct BoundedList<T, const MOST: usize>(pub(super) Vec<T>);

impl<T, const MOST: usize> Default for BoundedList<T, MOST> {
    fn default() -> Self {
        BoundedList(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for BoundedList<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T, const MOST: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Entries<T, MOST> {
            type Value = Vec<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "a list of at most {MOST} entries")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
                let mut read = Vec::new();
                while let Some(entry) = entries.next_element()? {
                    if read.len() == MOST {
                        return Err(A::Error::custom(format_args!("a list has more than {MOST} entries")));
                    }
                    read.push(entry);
                }
                Ok(read)
            }
        }

        deserializer.deserialize_seq(Entries::<T, MOST>(PhantomData)).map(BoundedList)
    }
}

//! Where a peer's slots lie: from the id of a slot to the addresses at which a device reads it.
//! Pure: the addresses are the peer's and mean nothing here.

use crate::slab::{MAX_CLASSES, STATE_STRIDE, SlotId};
use crate::wire::ExportedClass;
use std::collections::HashMap;

/// The slots of a peer's frontends, as it has exported them.
#[derive(Clone, Debug, Default)]
pub struct ExportedSlots {
    /// The classes by frontend and number.
    classes: HashMap<(u16, usize), ExportedClass>,
}

/// A peer's slot: the addresses there, and the keys that open them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteSlot {
    /// The address of its first byte.
    pub address: u64,
    /// The key of its bytes.
    pub key: u32,
    /// The address of its state, of four bytes.
    pub state_address: u64,
    /// The key of its state.
    pub state_key: u32,
}

impl ExportedSlots {
    /// Makes the slots of what a peer has listed.
    ///
    /// # Errors
    ///
    /// A sentence about what is wrong with the list: nothing outside of what it exports is ever
    /// read all the same, since its device checks.
    pub fn new(list: impl IntoIterator<Item = ExportedClass>) -> Result<ExportedSlots, String> {
        let mut classes = HashMap::new();
        for class in list {
            let ExportedClass { slots, states, slot_bytes, count, frontend, number, .. } = class;
            let end = |first: u64, bytes: u64| u64::from(count).checked_mul(bytes)?.checked_add(first);
            let is_valid = u16::try_from(frontend).is_ok()
                && (number as usize) < MAX_CLASSES
                && end(slots, slot_bytes.into()).is_some()
                && end(states, STATE_STRIDE as u64).is_some();
            if !is_valid {
                return Err(format!("class {number} of frontend {frontend} lies outside of any memory"));
            }
            if classes.insert((frontend as u16, number as usize), class).is_some() {
                return Err(format!("class {number} of frontend {frontend} is exported twice"));
            }
        }
        Ok(ExportedSlots { classes })
    }

    /// Returns where the slot of this id lies; `None` if the peer has none such, or one of fewer
    /// bytes.
    pub fn locate(&self, slot: SlotId, bytes: usize) -> Option<RemoteSlot> {
        let class = self.classes.get(&(slot.frontend(), slot.class()))?;
        let fits = bytes <= class.slot_bytes as usize && slot.index() < class.count as usize;
        let index = slot.index() as u64;
        fits.then(|| RemoteSlot {
            address: class.slots + index * u64::from(class.slot_bytes),
            key: class.slots_key,
            state_address: class.states + index * STATE_STRIDE as u64,
            state_key: class.states_key,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::slab::{Slab, SlotClass};
    use proptest::prelude::*;

    fn class(number: u32, slot_bytes: u32, count: u32) -> ExportedClass {
        let (slots, states) = (1 << 20, 1 << 30);
        ExportedClass { slots, states, slot_bytes, count, frontend: 7, number, slots_key: 11, states_key: 12 }
    }

    #[test]
    fn the_slots_of_a_slab_are_found_where_they_lie() {
        let classes = [(100, 3), (1_000, 2)].map(|(slot_bytes, count)| SlotClass { slot_bytes, count });
        let (mut owner, view) = Slab::new(&classes, 7).unwrap();
        let exported = view.addresses().into_iter().zip(0..).map(|(of, number)| ExportedClass {
            slots: of.slots as u64,
            states: of.states as u64,
            ..class(number, of.slot_bytes as u32, of.count as u32)
        });
        let exported = ExportedSlots::new(exported).unwrap();
        for bytes in [70, 80, 900, 1_024] {
            let id = owner.alloc(bytes).unwrap();
            let remote = exported.locate(id, bytes).unwrap();
            assert_eq!(remote.address, view.claim(id).unwrap().as_ptr().addr() as u64);
            assert_eq!(exported.locate(id, 1_025), None);
        }
    }

    #[test]
    fn what_a_peer_does_not_export_is_not_found() {
        let exported = ExportedSlots::new([class(0, 64, 2)]).unwrap();
        let id = |bits: u64| bytemuck::cast::<u64, SlotId>(7 << 48 | 1 << 24 | bits);
        assert!(exported.locate(id(1), 64).is_some());
        assert!(exported.locate(id(2), 64).is_none(), "no such slot");
        assert!(exported.locate(id(1 << 20), 64).is_none(), "no such class");
        assert!(exported.locate(bytemuck::cast(1_u64), 64).is_none(), "no such frontend");
    }

    #[test]
    fn a_list_that_no_memory_can_be_is_refused_with_a_sentence() {
        let refused = |list: &[ExportedClass]| ExportedSlots::new(list.iter().copied()).unwrap_err();
        assert_eq!(refused(&[class(0, 64, 2); 2]), "class 0 of frontend 7 is exported twice");
        let beyond = ExportedClass { slots: u64::MAX, ..class(1, 64, 2) };
        assert_eq!(refused(&[beyond]), "class 1 of frontend 7 lies outside of any memory");
        assert!(ExportedSlots::new([class(16, 64, 2)]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn whatever_is_located_lies_within_what_was_exported(
            list in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), 0_u32..3, 0_u32..20), 0..6),
            bits in any::<u64>(),
            bytes in any::<u32>(),
        ) {
            let of = |(slots, states, slot_bytes, count, frontend, number)| ExportedClass {
                slots, states, slot_bytes, count, frontend, number, slots_key: 1, states_key: 2,
            };
            let list: Vec<ExportedClass> = list.into_iter().map(of).collect();
            let Ok(exported) = ExportedSlots::new(list.clone()) else { return Ok(()) };
            let id: SlotId = bytemuck::cast(bits & !(0xfffc << 48));
            if let Some(found) = exported.locate(id, bytes as usize) {
                let within = |class: &ExportedClass| {
                    let end = class.slots + u64::from(class.count) * u64::from(class.slot_bytes);
                    class.slots <= found.address && found.address + u64::from(bytes) <= end
                };
                prop_assert!(list.iter().any(within));
            }
        }
    }
}

//! What two hosts must agree on before they exchange anything: a [`LinkTerms`] on each side, and
//! the sentence that says where they differ.

use crate::wire::{CloseCode, Hello, HostRole, OfferedModel, RecordList, TensorWay};

/// What a host offers on a link and expects there.
#[derive(Clone, Debug)]
pub struct LinkTerms {
    /// What it says of itself. The link raises the incarnation with each connection.
    pub hello: Hello,
    /// The host's models, by number.
    pub models: Vec<OfferedModel>,
    /// The role and number of the peer.
    pub peer: (HostRole, u32),
}

/// Why two hosts can't work together: the code, and a sentence for both logs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Disagreement {
    pub(super) code: CloseCode,
    pub(super) sentence: String,
}

impl LinkTerms {
    /// Checks what the peer says of itself. `known` is its last incarnation on this link, or zero.
    pub(super) fn check(
        &self,
        theirs: &Hello,
        models: RecordList<'_, OfferedModel>,
        known: u64,
    ) -> Result<(), Disagreement> {
        if theirs.incarnation <= known {
            return Err(Disagreement {
                code: CloseCode::Superseded,
                sentence: format!(
                    "{}: incarnation {} comes after incarnation {known}: is a second process running with the \
                     same role and number?",
                    theirs.name, theirs.incarnation
                ),
            });
        }
        match self.mismatch(theirs, models) {
            None => Ok(()),
            Some(sentence) => Err(Disagreement { code: CloseCode::Mismatch, sentence }),
        }
    }

    fn mismatch(&self, theirs: &Hello, models: RecordList<'_, OfferedModel>) -> Option<String> {
        let (role, number) = self.peer;
        let (ours, name) = (&self.hello, theirs.name);
        if (theirs.role, theirs.number) != (role as u32, number) {
            let is = HostRole::from_code(theirs.role).map_or("host", HostRole::name);
            return Some(format!("{name} is {is} {}, expected is {} {number}", theirs.number, role.name()));
        }
        if theirs.config != ours.config {
            return Some(format!("{name} and {} have different configurations", ours.name));
        }
        if theirs.heartbeat_every != ours.heartbeat_every {
            let [a, b] = [theirs, ours].map(|hello| hello.heartbeat_every);
            return Some(format!("heartbeats: {name} has one every {a:?}, {} every {b:?}", ours.name));
        }
        if theirs.max_batch != ours.max_batch {
            let [a, b] = [theirs, ours].map(|hello| hello.max_batch);
            return Some(format!("batches: at most {a} requests at {name}, {b} at {}", ours.name));
        }
        if theirs.tensors != ours.tensors {
            let way = |hello: &Hello| match TensorWay::from_code(hello.tensors) {
                Some(TensorWay::Rdma) => "RDMA",
                _ => "TCP",
            };
            return Some(format!(
                "{name} moves tensors by {}, {} by {}: give `tensors` of [links] the same value on both",
                way(theirs),
                ours.name,
                way(ours)
            ));
        }
        // Less than half of them may be consumed and not granted again yet, see
        // `ReceiveCredits::due`.
        if theirs.credits / 2 < theirs.max_batch {
            let (credits, most) = (theirs.credits, theirs.max_batch);
            return Some(format!(
                "{name} takes {credits} records at a time, which is less than twice a batch of {most}"
            ));
        }
        if models.len() != self.models.len() {
            return Some(format!(
                "{name} has {} models, {} has {}",
                models.len(),
                ours.name,
                self.models.len()
            ));
        }
        let differs = |(a, b): &(OfferedModel, &OfferedModel)| a != *b;
        let (_, model) = models.iter().zip(&self.models).find(differs)?;
        let number = model.model.0;
        Some(format!("model {number} is another one at {name} than at {}: load the same version", ours.name))
    }
}

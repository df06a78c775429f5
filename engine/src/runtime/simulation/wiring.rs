//! Every ring of a simulated engine, with a wire in it. The wires are grouped by the role that
//! receives from them, and carry just before it is polled.

use super::executors::SimulatedExecutors;
use super::wire::Wire;
use crate::runtime::start::rings::EngineRings;
use crate::runtime::threads::completions::NumberedCompletion;
use crate::runtime::threads::{GrantMessage, RankMessage};
use symphony_transport::Nanos;
use symphony_transport::message::{Frame, Request, Response};

/// The wires of which a role receives.
#[derive(Default)]
pub(super) struct RoleInputs {
    requests: Vec<Wire<Request>>,
    grants: Vec<Wire<GrantMessage>>,
    messages: Vec<Wire<RankMessage>>,
    completions: Vec<Wire<NumberedCompletion>>,
    batches: Vec<Wire<Frame>>,
    refusals: Vec<Wire<Response>>,
    results: Vec<Wire<Response>>,
}

impl RoleInputs {
    /// Carries what has come for the role.
    pub(super) fn carry(&mut self, now: Nanos, executors: &mut SimulatedExecutors) {
        self.requests.iter_mut().for_each(|wire| wire.carry(now));
        self.grants.iter_mut().for_each(|wire| wire.carry(now));
        self.messages.iter_mut().for_each(|wire| wire.carry(now));
        for wire in &mut self.refusals {
            wire.carry_each(now, |response| executors.refusal(now, response));
        }
        for wire in &mut self.completions {
            wire.carry_each(now, |completion| executors.completed(now, &completion.completion));
        }
        for (at, wire) in self.batches.iter_mut().enumerate() {
            executors.deliver_held(now, at, &mut wire.to);
            executors.begin_wire(at);
            wire.carry_each(now, |frame| executors.receive(now, frame));
        }
        for wire in &mut self.results {
            wire.carry_each(now, |response| executors.answer(now, response));
        }
    }

    /// Returns the number of answers that have arrived for a second time.
    pub(super) fn doubled_answers(&self) -> u64 {
        self.refusals.iter().chain(&self.results).map(|wire| wire.copies).sum()
    }

    /// Returns the number of the role's wires.
    pub(super) fn wires(&self) -> usize {
        let RoleInputs { requests, grants, messages, completions, batches, refusals, results } = self;
        let scheduling = requests.len() + grants.len() + messages.len();
        scheduling + completions.len() + batches.len() + refusals.len() + results.len()
    }

    /// Holds back what one of its wires carries.
    pub(super) fn hold(&mut self, wire: usize, until: Nanos) {
        let RoleInputs { requests, grants, messages, completions, batches, refusals, results } = self;
        let mut all = requests
            .iter_mut()
            .map(|wire| &mut wire.held_until)
            .chain(grants.iter_mut().map(|wire| &mut wire.held_until))
            .chain(messages.iter_mut().map(|wire| &mut wire.held_until))
            .chain(completions.iter_mut().map(|wire| &mut wire.held_until))
            .chain(batches.iter_mut().map(|wire| &mut wire.held_until))
            .chain(refusals.iter_mut().map(|wire| &mut wire.held_until))
            .chain(results.iter_mut().map(|wire| &mut wire.held_until));
        if let Some(held_until) = all.nth(wire) {
            *held_until = until.max(*held_until);
        }
    }
}

/// Puts a wire into every ring: those of the ModelThreads, of the RankThreads, of the emulated GPUs
/// and of the frontends, in this order. Rings of messages to a RankThread get `message_ring`
/// messages.
pub(super) fn wire_up(rings: &mut EngineRings, message_ring: usize) -> Vec<RoleInputs> {
    let mut models: Vec<RoleInputs> = rings.requests_out.iter().map(|_| RoleInputs::default()).collect();
    let mut ranks: Vec<RoleInputs> = rings.rank_links.iter().map(|_| RoleInputs::default()).collect();
    let mut gpus = RoleInputs::default();
    let mut clients: Vec<RoleInputs> = rings.slabs.iter().map(|_| RoleInputs::default()).collect();
    for (at, inputs) in models.iter_mut().enumerate() {
        inputs.requests = rings.requests_out[at].iter_mut().map(Wire::before).collect();
        let Some(links) = rings.model_links[at].as_mut() else { continue };
        inputs.grants = links.grants.iter_mut().map(Wire::before).collect();
        for (rank, sender) in links.messages.iter_mut().enumerate() {
            let Some(receivers) = rings.rank_links[rank].as_mut() else { continue };
            let receiver = &mut receivers.messages[at];
            ranks[rank].messages.push(Wire::in_place_of(sender, receiver, message_ring));
        }
        for (client, sender) in clients.iter_mut().zip(&mut rings.model_answers[at]) {
            client.refusals.push(Wire::behind(sender));
        }
    }
    for (inputs, completions) in ranks.iter_mut().zip(&mut rings.completions_out) {
        inputs.completions = completions.iter_mut().map(|ring| Wire::before(ring.ring_mut())).collect();
    }
    gpus.batches = rings.frames_out.iter_mut().flatten().map(Wire::before).collect();
    for answers in &mut rings.backend_answers {
        for (client, sender) in clients.iter_mut().zip(answers) {
            client.results.push(Wire::behind(sender));
        }
    }
    models.into_iter().chain(ranks).chain([gpus]).chain(clients).collect()
}

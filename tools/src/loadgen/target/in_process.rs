//! Load on an engine in this process, without HTTP: the calling thread owns a [`Frontend`], submits
//! requests at their times and polls for answers in between. What is measured is the engine alone.

use super::{Requests, Target, Watch};
use crate::loadgen::RunError;
use crate::loadgen::inputs::{Element, InputSpec, Row};
use crate::loadgen::measure::{End, RequestRecord, ServerDetails, StageTimes};
use crate::loadgen::report::RunInfo;
use crate::loadgen::schedule::{ClosedLoopClient, Pace, Plan, PlannedModel, Schedule};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use symphony::config::read_config;
use symphony::runtime::clock::Clock;
use symphony::runtime::frontend::{Answer, Ask, Class, Due, Frontend, Outcome, Refusal, Ticket};
use symphony::runtime::{Engine, Idle, StartError};
use symphony_transport::Nanos;
use symphony_transport::message::Ending;

/// The time to wait for answers after the last request.
const GRACE: Nanos = Nanos::from_secs(10);
/// The time to wait for answers after Ctrl-C.
const GRACE_STOPPED: Nanos = Nanos::from_secs(2);
/// The sleep after a duty cycle without work, where other threads need the core.
const NAP: Duration = Duration::from_micros(20);
/// Requests submitted between two polls for answers.
const PER_TURN: usize = 64;

/// Starts the engine that `config` describes and makes a target of it, to be run by the calling
/// thread: it is moved to the core that the engine keeps for it.
///
/// Errors: the diagnostics of CONFIG; an engine that can't start.
pub fn start(config_file: &Path) -> Result<Box<dyn Target>, RunError> {
    let config = read_config(config_file).map_err(|diagnostics| RunError::Usage(diagnostics.to_string()))?;
    let (engine, frontends) =
        Engine::start(config, 1, Arc::new(|line| eprintln!("{line}"))).map_err(cause)?;
    let first = frontends.into_iter().zip(engine.layout().frontends.iter().copied()).next();
    let (frontend, placement) =
        first.ok_or_else(|| RunError::Machine("the engine has no frontend".into()))?;
    placement.take("the load generator");
    let config = config_file.display().to_string();
    let idle = placement.idle;
    Ok(Box::new(InProcess { frontend, idle, models: Vec::new(), rows: 1, config, _engine: Some(engine) }))
}

fn cause(error: StartError) -> RunError {
    match error {
        StartError::Config(_)
        | StartError::Limit { .. }
        | StartError::Policy(..)
        | StartError::WholePolicy(..)
        | StartError::Address(_)
        | StartError::LearnedProfiles(_) => RunError::Usage(error.to_string()),
        StartError::Slab(_)
        | StartError::Thread(_)
        | StartError::Links(_)
        | StartError::Record(_)
        | StartError::Tensors(_)
        | StartError::Died(_) => RunError::Machine(error.to_string()),
    }
}

/// An engine's frontend as a [`Target`].
pub struct InProcess {
    frontend: Frontend,
    idle: Idle,
    models: Vec<InProcessModel>,
    /// Rows in each request.
    rows: usize,
    config: String,
    /// Runs until it is dropped.
    _engine: Option<Engine>,
}

impl InProcess {
    /// Sends through `frontend`, whose engine the caller keeps running.
    pub fn new(frontend: Frontend) -> InProcess {
        let (idle, models, config) = (Idle::Nap, Vec::new(), String::new());
        InProcess { frontend, idle, models, rows: 1, config, _engine: None }
    }
}

/// A model that is ready to be asked.
struct InProcessModel {
    ask: Ask,
    /// Rows in the layout of the model's signature.
    rows: Vec<Vec<u8>>,
    /// The row that goes out next.
    next: usize,
}

/// A request in flight.
#[derive(Clone, Copy)]
struct InFlight {
    model: usize,
    client: usize,
    intended: Nanos,
    sent: Nanos,
}

impl Target for InProcess {
    fn model_names(&mut self) -> Result<Vec<String>, RunError> {
        Ok(self.frontend.models().iter().map(|info| info.name.clone()).collect())
    }

    fn prepare(
        &mut self,
        models: &[PlannedModel],
        requests: &Requests,
    ) -> Result<Vec<Option<Nanos>>, RunError> {
        let prepare = |(index, model)| prepare(&self.frontend, index, model, requests);
        let prepared = (0..).zip(models).map(prepare).collect::<Result<Vec<_>, _>>()?;
        let (models, slos): (Vec<InProcessModel>, Vec<Nanos>) = prepared.into_iter().unzip();
        (self.models, self.rows) = (models, requests.inputs.rows);
        Ok(slos.into_iter().map(Some).collect())
    }

    fn run(&mut self, plan: &Plan, watch: &mut Watch) -> Result<(), RunError> {
        let schedule = plan.schedule().map_err(|e| RunError::Usage(e.to_string()))?;
        let nothing = InFlight { model: 0, client: 0, intended: Nanos::ZERO, sent: Nanos::ZERO };
        let in_flight = vec![nothing; self.frontend.capacity()];
        let start = self.frontend.now();
        let _stalls = watch.stalls(Clock::start());
        let clients = match plan.pace {
            Pace::Closed { clients, .. } => {
                (0..clients).map(|client| ClosedLoopClient::new(plan, client)).collect()
            }
            Pace::Open { .. } => Vec::new(),
        };
        let waiting = (0..clients.len()).map(|client| Reverse((Nanos::ZERO, client))).collect();
        let (idle, rows, models) = (self.idle, self.rows, std::mem::take(&mut self.models));
        let frontend = &mut self.frontend;
        let mut run =
            InProcessRun { frontend, idle, plan, models, rows, in_flight, start, clients, waiting, watch };
        run.run(schedule);
        self.models = run.models;
        Ok(())
    }

    fn info(&self) -> RunInfo {
        RunInfo {
            target: self.config.clone(),
            protocol: "in-process".into(),
            tensors: "binary".into(),
            rows: self.rows,
            threads: 1,
            ..RunInfo::default()
        }
    }
}

/// A model's requests, and its SLO.
fn prepare(
    frontend: &Frontend,
    index: u64,
    model: &PlannedModel,
    requests: &Requests,
) -> Result<(InProcessModel, Nanos), RunError> {
    let known = frontend.models();
    let info = known.iter().find(|info| info.name == model.name).ok_or_else(|| {
        let names: Vec<&str> = known.iter().take(20).map(|info| info.name.as_str()).collect();
        RunError::Usage(format!("the engine has no model \"{}\"; it has {}", model.name, names.join(", ")))
    })?;
    let spec = |tensor: &symphony_gpu::TensorSpec| InputSpec {
        name: tensor.name.clone(),
        element: Element::parse(tensor.datatype.name()).unwrap_or(Element::Fixed(tensor.datatype)),
        shape: tensor.shape.clone(),
    };
    let specs: Vec<InputSpec> = info.signature.inputs.iter().map(spec).collect();
    let rows = requests.inputs.rows_for(&model.name, index, &specs);
    let rows = rows.map_err(|what| RunError::Usage(format!("model \"{}\": {what}", model.name)))?;
    let laid_out = |row: &Row| {
        let mut bytes = vec![0; info.signature.input_bytes()];
        for (at, data) in row.iter().enumerate() {
            let range = info.signature.input_range(at);
            bytes[range][..data.len()].copy_from_slice(data);
        }
        bytes
    };
    let rows = rows.iter().map(laid_out).collect();
    let ask = Ask {
        rows: requests.inputs.rows,
        due: requests.limit(model).map_or(Due::Slo, Due::Within),
        class: requests.class.and_then(Class::new).unwrap_or(info.class),
        ..Ask::one(info.id)
    };
    Ok((InProcessModel { ask, rows, next: 0 }, info.slo))
}

/// A run under way.
struct InProcessRun<'a> {
    frontend: &'a mut Frontend,
    idle: Idle,
    plan: &'a Plan,
    models: Vec<InProcessModel>,
    rows: usize,
    /// Requests in flight, by ticket.
    in_flight: Vec<InFlight>,
    /// The engine's time at which the run began.
    start: Nanos,
    /// The clients of a closed loop.
    clients: Vec<ClosedLoopClient>,
    /// The clients without a request in flight, by the time of their next request.
    waiting: BinaryHeap<Reverse<(Nanos, usize)>>,
    watch: &'a mut Watch,
}

impl InProcessRun<'_> {
    fn now(&self) -> Nanos {
        self.frontend.now() - self.start
    }

    fn run(&mut self, schedule: Schedule) {
        let mut schedule = schedule.peekable();
        let mut give_up = self.plan.end() + GRACE;
        let mut stopped = false;
        loop {
            let answered = self.poll();
            let now = self.now();
            self.watch.progress.update(now);
            if self.watch.stopped() && !stopped {
                self.watch.tally.stopped(now);
                (stopped, give_up) = (true, now + GRACE_STOPPED);
            }
            let more = match self.plan.pace {
                Pace::Open { .. } => schedule.peek().is_some(),
                Pace::Closed { .. } => now < self.plan.end(),
            };
            let sent = match self.plan.pace {
                _ if stopped || !more => 0,
                Pace::Open { .. } => self.send_due(&mut schedule),
                Pace::Closed { .. } => self.send_for_waiting_clients(),
            };
            if ((stopped || !more) && self.frontend.in_flight() == 0) || now > give_up {
                return;
            }
            if answered + sent == 0 {
                match self.idle {
                    Idle::Spin => std::hint::spin_loop(),
                    Idle::Nap => std::thread::sleep(NAP),
                }
            }
        }
    }

    fn send_due(&mut self, schedule: &mut std::iter::Peekable<Schedule>) -> usize {
        let mut sent = 0;
        while sent < PER_TURN
            && let now = self.now()
            && let Some((intended, model)) = schedule.next_if(|(at, _)| *at <= now)
        {
            self.submit(model, 0, intended);
            sent += 1;
        }
        sent
    }

    fn send_for_waiting_clients(&mut self) -> usize {
        let mut sent = 0;
        while sent < PER_TURN
            && let now = self.now()
            && let Some(Reverse((at, client))) = self.waiting.peek().copied()
            && at <= now
        {
            self.waiting.pop();
            let model = self.clients[client].model();
            self.submit(model, client, now);
            sent += 1;
        }
        sent
    }

    fn submit(&mut self, index: usize, client: usize, intended: Nanos) {
        let sent = self.now();
        self.watch.tally.offered(index, intended);
        self.watch.tally.sent(intended, sent);
        let model = &mut self.models[index];
        let (from, count) = (model.next, model.rows.len());
        model.next = (from + self.rows) % count;
        let (rows, ask) = (&model.rows, model.ask);
        match self.frontend.submit(&ask, |row, slot| slot.copy_from_slice(&rows[(from + row) % count])) {
            Ok(ticket) => {
                self.in_flight[ticket.index] = InFlight { model: index, client, intended, sent };
            }
            Err(refusal) => {
                let end = match refusal {
                    Refusal::TooManyRows { .. } => End::Failed,
                    _ => End::Rejected,
                };
                let tally = &mut self.watch.tally;
                if end == End::Failed {
                    tally.failed_since(|| refusal.to_string());
                }
                tally.ended(RequestRecord {
                    model: index,
                    intended,
                    sent,
                    ended: sent,
                    end,
                    details: ServerDetails::default(),
                });
                self.client_is_free(client, sent);
            }
        }
    }

    /// The client thinks, and then sends its next request.
    fn client_is_free(&mut self, client: usize, now: Nanos) {
        if let Some(thinking) = self.clients.get_mut(client) {
            self.waiting.push(Reverse((now + thinking.pause(), client)));
        }
    }

    fn poll(&mut self) -> usize {
        let (in_flight, start, tally) = (&self.in_flight, self.start, &mut self.watch.tally);
        let (clients, waiting) = (&mut self.clients, &mut self.waiting);
        self.frontend.poll(|ticket: Ticket, answer: Answer<'_>| {
            let InFlight { model, client, intended, sent } = in_flight[ticket.index];
            let end = end(answer.outcome);
            if end == End::Failed {
                tally.failed_since(|| "the executor failed on its batch".into());
            }
            let ended = answer.timeline.answered - start;
            tally.ended(RequestRecord { model, intended, sent, ended, end, details: details(&answer) });
            if let Some(thinking) = clients.get_mut(client) {
                waiting.push(Reverse((ended + thinking.pause(), client)));
            }
        })
    }
}

fn details(answer: &Answer<'_>) -> ServerDetails {
    let times = StageTimes {
        queued: answer.timeline.arrival,
        batched: answer.timeline.batched,
        started: answer.timeline.started,
        finished: answer.timeline.finished,
        answered: answer.timeline.answered,
    };
    let ran = answer.timeline.started > Nanos::ZERO;
    ServerDetails {
        batch_size: answer.batch_size,
        gpu: ran.then_some(answer.gpu.0),
        times: ran.then_some(times),
    }
}

fn end(outcome: Outcome) -> End {
    match outcome {
        Outcome::Good | Outcome::Bad(Ending::Done) => End::Good,
        Outcome::Late(_) | Outcome::Overdue(_) => End::Late,
        Outcome::Bad(Ending::DroppedInQueue | Ending::DroppedAtBackend) => End::Dropped,
        Outcome::Bad(Ending::Overloaded | Ending::Stopped | Ending::Withdrawn) => End::Rejected,
        Outcome::Bad(Ending::Failed) | Outcome::Broken => End::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::inputs::Inputs;
    use crate::loadgen::report::{Report, tests::report};
    use crate::loadgen::schedule::tests::open;
    use std::sync::atomic::{AtomicBool, Ordering};
    use symphony::runtime::frontend::{FrontendPeer, FrontendSetup, ModelInfo, SlotState};
    use symphony_gpu::{DataType, Signature, TensorSpec};
    use symphony_transport::message::{ModelId, Request, Response};

    fn frontend() -> (Frontend, FrontendPeer) {
        let tensor = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, shape: vec![4] };
        let model = ModelInfo {
            id: ModelId(0),
            name: "m".into(),
            version: 1,
            platform: "emulated".into(),
            signature: Signature::of_rows(vec![tensor("in")], vec![tensor("out")]),
            defaults: Default::default(),
            sizes: None,
            application: None,
            variant: None,
            slo: Nanos::from_secs(60),
            max_batch: 8,
            profile: symphony_scheduler::profile::Profile::of_nothing().into(),
            thread: 0,
            state: SlotState::Serving,
            rolls: false,
            class: Class::HIGHEST,
        };
        Frontend::new(FrontendSetup::of_models(Arc::new([model]))).unwrap()
    }

    /// Answers every request at once with the ending that `end` gives its number, until `over`.
    fn answer(mut peer: FrontendPeer, over: &AtomicBool, end: impl Fn(u64) -> Ending) {
        while !over.load(Ordering::Relaxed) {
            while let Some(Request { id, slot, .. }) = peer.requests[0].pop() {
                let response =
                    Response { id, slot, ending: end(id) as u32, batch_size: 4, ..Response::default() };
                peer.responses[0].push(response).unwrap();
            }
            std::thread::yield_now();
        }
    }

    fn run(plan: &Plan, end: impl Fn(u64) -> Ending + Send) -> Report {
        let (frontend, peer) = frontend();
        let over = AtomicBool::new(false);
        let stop = Arc::new(AtomicBool::new(false));
        let mut watch = Watch::new(plan, stop, false, "");
        std::thread::scope(|scope| {
            scope.spawn(|| answer(peer, &over, end));
            let mut target = InProcess::new(frontend);
            let slos = target.prepare(&plan.models, &requests()).unwrap();
            assert_eq!(slos, [Some(Nanos::from_secs(60))]);
            target.run(plan, &mut watch).unwrap();
            over.store(true, Ordering::Relaxed);
        });
        report(plan, watch.tally)
    }

    fn requests() -> Requests {
        Requests { inputs: Inputs { rows: 1, seed: 1, ..Inputs::default() }, ..Requests::default() }
    }

    #[test]
    fn every_request_of_an_open_loop_is_sent_and_counted_by_how_it_ended() {
        let plan = open("m", 1_000.0, Nanos::from_millis(300));
        let report = run(&plan, |id| match id % 10 {
            0 => Ending::DroppedInQueue,
            1 => Ending::Overloaded,
            2 => Ending::Failed,
            _ => Ending::Done,
        });
        let f = &report.figures;
        assert_eq!((f.offered, f.sent, f.good), (300, 300, 210));
        assert_eq!((f.dropped, f.rejected, f.failed, f.late), (30, 30, 30, 0));
        assert_eq!((f.mean_batch, f.unanswered), (4.0, 0));
    }

    #[test]
    fn the_clients_of_a_closed_loop_wait_for_their_answers() {
        let mut plan = open("m", 0.0, Nanos::from_millis(200));
        plan.pace = Pace::Closed { clients: 3, think: Nanos::ZERO };
        let report = run(&plan, |_| Ending::Done);
        assert!(report.figures.offered > 3 && report.figures.offered == report.figures.good);
    }

    #[test]
    fn a_model_that_the_engine_lacks_is_named_with_those_it_has() {
        let plan = open("n", 1.0, Nanos::from_secs(1));
        let error = InProcess::new(frontend().0).prepare(&plan.models, &requests()).unwrap_err();
        assert_eq!(error.to_string(), "the engine has no model \"n\"; it has m");
    }
}

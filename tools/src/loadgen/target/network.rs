//! Load on a server over any protocol. The calling thread is the pacer: it sleeps until a request's
//! time and hands it to one of the client threads, each of which sends, reads the answers and
//! counts, on connections of its own. So neither a slow answer nor a burst of answers delays the
//! next request.

use super::call::{Call, SharedInputs};
use super::client::{ClientThread, PreparedModel};
use super::connection::runtime;
use super::describe::Description;
use super::interface::{Requests, Target, Tensors, Watch};
use super::pacer::{ClientHandle, Pacer};
use super::shared_memory::Region;
use super::url::ServerUrl;
use super::wire::Wire;
use crate::loadgen::RunError;
use crate::loadgen::inputs::InputSpec;
use crate::loadgen::report::RunInfo;
use crate::loadgen::schedule::{Pace, Plan, PlannedModel};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;
use symphony_transport::Nanos;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::LocalSet;

/// The settings of a target over the network.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The server's URL.
    pub server: ServerUrl,
    /// Connections that may be open at once, of all threads together; `None` is the protocol's own
    /// default.
    pub connections: Option<usize>,
    /// Threads that send.
    pub threads: usize,
}

/// A server as a [`Target`].
pub(super) struct NetworkTarget<W: Wire> {
    settings: Settings,
    /// The connection for what is not load.
    control: Option<Control<W>>,
    models: Arc<Vec<PreparedModel>>,
    tensors: Tensors,
    rows: usize,
}

struct Control<W> {
    runtime: tokio::runtime::Runtime,
    tasks: LocalSet,
    wire: W,
}

impl<W: Wire> NetworkTarget<W> {
    /// A server, which is not spoken to yet.
    pub(super) fn new(settings: Settings) -> NetworkTarget<W> {
        NetworkTarget {
            settings,
            control: None,
            models: Arc::new(Vec::new()),
            tensors: Tensors::Best,
            rows: 1,
        }
    }

    fn control(&mut self) -> Result<&Control<W>, RunError> {
        if self.control.is_none() {
            let (runtime, tasks) = (runtime()?, LocalSet::new());
            let wire = tasks.block_on(&runtime, W::connect(&self.settings.server, 1))?;
            self.control = Some(Control { runtime, tasks, wire });
        }
        Ok(self.control.as_ref().expect("just made"))
    }

    fn connections(&self, pace: Pace) -> usize {
        let asked = self.settings.connections.unwrap_or(W::CONNECTIONS);
        match pace {
            Pace::Open { .. } => asked,
            Pace::Closed { clients, .. } if self.settings.connections.is_none() => clients.max(asked),
            Pace::Closed { .. } => asked,
        }
    }

    /// Returns the form of tensors that this server takes.
    fn choose(&mut self, asked: Tensors) -> Result<Tensors, RunError> {
        let Tensors::Best = asked else { return Ok(asked) };
        let control = self.control()?;
        let extensions = control.tasks.block_on(&control.runtime, control.wire.extensions())?;
        let binary = extensions.iter().any(|name| name == "binary_tensor_data");
        Ok(if binary { Tensors::Binary } else { Tensors::Json })
    }

    fn prepare_one(
        &mut self,
        index: u64,
        model: &PlannedModel,
        requests: &Requests,
    ) -> Result<(PreparedModel, Option<Nanos>), RunError> {
        let server = self.settings.server.clone();
        let usage = |what: String| RunError::Usage(format!("model \"{}\" of {server}: {what}", model.name));
        let tensors = self.tensors;
        let slots = self.connections(Pace::OPEN);
        let slots = W::in_flight_limit(slots).unwrap_or(SLOTS_WITHOUT_LIMIT);
        let control = self.control()?;
        let description = control.tasks.block_on(&control.runtime, control.wire.describe(&model.name))?;
        let inputs = &requests.inputs;
        let rows = inputs.rows_for(&model.name, index, &description.inputs).map_err(usage)?;
        let all = inputs.requests(&rows, &description.inputs, description.batched).map_err(usage)?;
        let region = match tensors {
            Tensors::Shared => {
                let outputs = output_sizes(&description, inputs.rows).map_err(usage)?;
                let region = Region::create(&all, &outputs, slots)
                    .map_err(|what| RunError::Machine(format!("model \"{}\": {what}", model.name)))?;
                control.tasks.block_on(&control.runtime, control.wire.register(&region))?;
                Some(region)
            }
            _ => None,
        };
        let message = |(at, tensors): (usize, &Vec<_>)| {
            let shared = region.as_ref();
            let shared = shared.map(|r| SharedInputs { region: &r.name, slices: &r.inputs[at] });
            let call = Call {
                model: &model.name,
                tensors,
                limit: requests.limit(model),
                class: requests.class,
                json: self.tensors == Tensors::Json,
                shared,
            };
            W::encode(&server, &call).map_err(usage)
        };
        let messages = all.iter().enumerate().map(message).collect::<Result<_, _>>()?;
        Ok((PreparedModel { messages, region }, description.slo))
    }
}

/// Slots for outputs in shared memory where connections do not bound what is under way.
const SLOTS_WITHOUT_LIMIT: usize = 1_024;

fn output_sizes(description: &Description, rows: usize) -> Result<Vec<(String, usize)>, String> {
    let size = |(name, spec): &(String, Option<InputSpec>)| {
        let bytes = spec.as_ref().and_then(InputSpec::row_bytes);
        let bytes = bytes.ok_or_else(|| {
            format!("the size of output \"{name}\" is not known before, so it can't go to shared memory")
        })?;
        Ok((name.clone(), bytes.saturating_mul(rows)))
    };
    description.outputs.iter().map(size).collect()
}

impl<W: Wire> Drop for NetworkTarget<W> {
    fn drop(&mut self) {
        let Some(control) = &self.control else { return };
        for region in self.models.iter().filter_map(|model| model.region.as_ref()) {
            control.tasks.block_on(&control.runtime, control.wire.unregister(region));
        }
    }
}

impl<W: Wire> Target for NetworkTarget<W> {
    fn model_names(&mut self) -> Result<Vec<String>, RunError> {
        let control = self.control()?;
        control.tasks.block_on(&control.runtime, control.wire.model_names())
    }

    fn prepare(
        &mut self,
        models: &[PlannedModel],
        requests: &Requests,
    ) -> Result<Vec<Option<Nanos>>, RunError> {
        self.tensors = self.choose(requests.tensors)?;
        self.rows = requests.inputs.rows;
        let prepare = |(index, model)| self.prepare_one(index, model, requests);
        let prepared = (0..).zip(models).map(prepare).collect::<Result<Vec<_>, _>>()?;
        let (models, slos) = prepared.into_iter().unzip();
        self.models = Arc::new(models);
        Ok(slos)
    }

    fn run(&mut self, plan: &Plan, watch: &mut Watch) -> Result<(), RunError> {
        let schedule = plan.schedule().map_err(|e| RunError::Usage(e.to_string()))?;
        let threads = match plan.pace {
            Pace::Closed { clients, .. } => self.settings.threads.min(clients),
            Pace::Open { .. } => self.settings.threads,
        };
        let lost = Arc::new(AtomicBool::new(false));
        let connections = self.connections(plan.pace).div_ceil(threads);
        thread::scope(|scope| {
            let mut workers = Vec::new();
            for thread in 0..threads {
                let (jobs, due) = unbounded_channel();
                let (go, start) = mpsc::channel();
                let (ready, is_ready) = mpsc::channel();
                let worker = ClientThread::<W> {
                    server: &self.settings.server,
                    connections,
                    thread,
                    threads,
                    plan,
                    models: Arc::clone(&self.models),
                    tally: watch.part(plan),
                    stop: Arc::clone(&watch.stop),
                    lost: Arc::clone(&lost),
                    wire: std::marker::PhantomData,
                };
                let handle = scope.spawn(move || worker.run(&ready, &start, due));
                workers.push(ClientHandle { jobs, go, is_ready, handle });
            }
            let pacer = Pacer { plan, watch: &mut *watch, lost: &lost };
            let tallies = pacer.run(schedule, workers)?;
            tallies.into_iter().for_each(|tally| watch.tally.merge(tally));
            Ok(())
        })
    }

    fn info(&self) -> RunInfo {
        let tensors = match self.tensors {
            Tensors::Best | Tensors::Json => "json",
            Tensors::Binary => "binary",
            Tensors::Shared => "shared memory",
        };
        RunInfo {
            target: self.settings.server.to_string(),
            protocol: W::NAME.into(),
            tensors: tensors.into(),
            rows: self.rows,
            threads: self.settings.threads,
            ..RunInfo::default()
        }
    }
}

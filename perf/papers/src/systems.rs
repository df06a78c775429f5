//! The systems that the experiments compare: each system of the papers as a policy with its
//! options, under one name, label and colour in every chart.

use plotters::style::RGBColor;
use std::io;
use symphony_perf::charts::{COLOURS, Series, Shape};
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::policy::options::{BatchSizes, NexusPacking};
use symphony_scheduler::policy::when::{self, When};
use symphony_scheduler::policy::{self, Policy, PolicyOptions};
use symphony_scheduler::rule_setting::Prefer;
use symphony_scheduler::sim::report::Report;
use symphony_scheduler::sim::{self, Fault, Observer, goodput};
use symphony_scheduler::workload::Workload;

/// A scheduler with its options.
#[derive(Clone, Copy, Debug)]
pub struct System {
    /// The name in CSV files.
    pub name: &'static str,
    /// The name in charts.
    pub label: &'static str,
    policy: Chosen,
    drop: Option<DropRule>,
    when: Option<&'static When>,
    frontends: usize,
    /// The placement of sessions (Nexus only).
    packing: NexusPacking,
    /// True if batches have any size (Clockwork only).
    any_batch: bool,
    /// b of ORLOJ, in 1/ms; `None` for the default.
    delay_rate: Option<f64>,
    /// True if the setting is tuned while it runs (this engine's default only).
    is_tuned: bool,
    colour: usize,
}

/// The policy of a system.
#[derive(Clone, Copy, Debug)]
enum Chosen {
    /// One of the engine's.
    Named(&'static str),
    /// One that only an experiment has.
    Own(&'static dyn Policy),
}

/// The published rule, which Symphony's figures call Symphony.
pub const PUBLISHED: System =
    System::new("symphony-published", "Symphony (as published)", "symphony-published", 0);

/// The default of this engine.
pub const DEFAULT: System = System::new("symphony", "this engine's default", "symphony", 1);

/// The same with its tuner on, as the engine and `simulate` have it.
pub const TUNED: System =
    System { is_tuned: true, colour: 2, ..DEFAULT }.named("symphony-tuned", "this engine's default, tuned");

/// Runs what there is as soon as a GPU is free, with the published drop rule.
pub const WORK_CONSERVING: System = System::new("work-conserving", "work-conserving", "work-conserving", 6);

/// The rule of Symphony's section 4.3, which starts a batch early where waiting does not pay.
pub const BETA_LAMBDA: System = System { when: Some(&when::BETA_LAMBDA), colour: 5, ..PUBLISHED }
    .named("beta-lambda", "beta-lambda rule");

/// Clockwork (OSDI 2020) with any batch size, as Symphony's evaluation has it.
pub const CLOCKWORK: System =
    System { any_batch: true, colour: 2, ..CLOCKWORK_POW2 }.named("clockwork", "Clockwork");

/// Clockwork (OSDI 2020) as published: batches of a power of two.
pub const CLOCKWORK_POW2: System = System::new("clockwork-pow2", "Clockwork, powers of two", "clockwork", 10);

/// Nexus (SOSP 2019) with one frontend.
pub const NEXUS: System = System::new("nexus", "Nexus", "nexus", 3);

/// Nexus with eight frontends that do not coordinate, as in Symphony's Figure 6.
pub const NEXUS_8: System = System { colour: 4, ..NEXUS }.routed_by(8).named("nexus-8", "Nexus, 8 frontends");

/// Shepherd (NSDI 2023), as far as it is published.
pub const SHEPHERD: System = System::new("shepherd", "Shepherd", "shepherd", 7);

/// Clipper (NSDI 2017): batch sizes that adapt, lazy dropping.
pub const CLIPPER: System = System::new("clipper", "Clipper", "clipper", 8);

/// Triton's dynamic batcher.
pub const TRITON: System = System::new("triton", "Triton", "triton", 9);

/// The systems that Symphony's figures compare, Shepherd and this engine's default.
pub const COMPARED: &[System] = &[PUBLISHED, DEFAULT, CLOCKWORK, NEXUS, NEXUS_8, SHEPHERD];

/// Every system whose setting stays as it is.
pub const ALL: &[System] = &[
    PUBLISHED,
    DEFAULT,
    CLOCKWORK,
    CLOCKWORK_POW2,
    NEXUS,
    NEXUS_8,
    SHEPHERD,
    CLIPPER,
    TRITON,
    WORK_CONSERVING,
    BETA_LAMBDA,
];

impl System {
    /// Makes a system of one of the engine's policies.
    pub const fn new(name: &'static str, label: &'static str, policy: &'static str, colour: usize) -> System {
        let policy = Chosen::Named(policy);
        let (drop, when, packing) = (None, None, NexusPacking::Squishy);
        System {
            name,
            label,
            policy,
            drop,
            when,
            frontends: 1,
            packing,
            any_batch: false,
            delay_rate: None,
            is_tuned: false,
            colour,
        }
    }

    /// Makes a system of a policy that only an experiment has.
    pub const fn own(name: &'static str, label: &'static str, policy: &'static dyn Policy) -> System {
        System { policy: Chosen::Own(policy), ..System::new(name, label, "", 10) }
    }

    /// Returns the system under another name and label.
    pub const fn named(self, name: &'static str, label: &'static str) -> System {
        System { name, label, ..self }
    }

    /// Returns the system with another drop rule.
    pub const fn dropping(self, drop: DropRule) -> System {
        System { drop: Some(drop), ..self }
    }

    /// Returns the system in another colour, for charts without the system that has it.
    pub const fn coloured(self, colour: usize) -> System {
        System { colour, ..self }
    }

    /// Returns the system with another placement of sessions.
    pub const fn packed(self, packing: NexusPacking) -> System {
        System { packing, ..self }
    }

    /// Returns the system with another rate of the anticipated delay, in 1/ms (ORLOJ only).
    pub const fn expecting(self, delay_rate: f64) -> System {
        System { delay_rate: Some(delay_rate), ..self }
    }

    /// Returns the system with this number of frontends that route independently.
    pub const fn routed_by(self, frontends: usize) -> System {
        System { frontends, ..self }
    }

    /// Finds the highest rate at which every model's bad rate is at most 1 %; returns the run at
    /// that rate.
    ///
    /// Errors: as [`sim::simulate`].
    pub fn goodput(&self, workload: &Workload) -> io::Result<Report> {
        goodput::search(workload, self.policy(), &self.options(), &mut |_| {}).map_err(io::Error::other)
    }

    /// Returns the rate of [`System::goodput`]; 0 where no rate passes.
    ///
    /// Errors: as [`sim::simulate`].
    pub fn goodput_rps(&self, workload: &Workload) -> io::Result<f64> {
        Ok(self.goodput(workload)?.goodput_rps.unwrap_or(0.0))
    }

    /// Runs the system once at the workload's own rate.
    ///
    /// Errors: as [`sim::simulate`].
    pub fn run(&self, workload: &Workload) -> io::Result<Report> {
        self.observed(workload, &mut ())
    }

    /// Runs the system once at the workload's own rate, with an observer.
    ///
    /// Errors: as [`sim::simulate`].
    pub fn observed(&self, workload: &Workload, observer: &mut dyn Observer) -> io::Result<Report> {
        sim::simulate_observed(workload, self.policy(), &self.options(), Fault::default(), observer)
            .map_err(io::Error::other)
    }

    fn policy(&self) -> &'static dyn Policy {
        match self.policy {
            Chosen::Named(name) => policy::by_name(name).expect("every system names a policy: a test looks"),
            Chosen::Own(policy) => policy,
        }
    }

    fn options(&self) -> PolicyOptions {
        let mut options = PolicyOptions {
            drop: self.drop,
            when: self.when,
            frontends: self.frontends,
            nexus_packing: self.packing,
            ..PolicyOptions::default()
        };
        if self.any_batch {
            options.clockwork.batches = BatchSizes::Any;
        }
        options.tuning = self.is_tuned.then(Prefer::default);
        options.orloj_delay_rate = self.delay_rate.unwrap_or(options.orloj_delay_rate);
        options
    }

    /// Returns the system's colour.
    pub fn colour(&self) -> RGBColor {
        COLOURS[self.colour]
    }

    /// Makes a series of this system.
    pub fn series(&self, shape: Shape, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series {
            label: self.label.to_owned(),
            colour: self.colour(),
            shape,
            points: points.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_names_a_policy() {
        for system in ALL {
            if let Chosen::Named(name) = system.policy {
                assert!(policy::by_name(name).is_some(), "{}", system.name);
            }
        }
    }
}

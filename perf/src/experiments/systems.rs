//! What the experiments compare: each system of the papers as a policy of ours with its options, under one name, label
//! and colour in every chart.

use crate::charts::{COLOURS, Series, Shape};
use plotters::style::RGBColor;
use std::io;
use symphony::model::selection::DropRule;
use symphony::policy::{self, Policy};
use symphony::sim::goodput;
use symphony::sim::report::Report;
use symphony::sim::{self, Fault, Observer};
use symphony::workload::Workload;

/// A scheduler and how it is set.
#[derive(Clone, Copy, Debug)]
pub struct System {
    /// Its name in CSV files.
    pub name: &'static str,
    /// Its name in charts.
    pub label: &'static str,
    policy: &'static str,
    drop: DropRule,
    colour: usize,
}

/// The published rule, which the papers' figures call Symphony.
pub const PUBLISHED: System = System::new("symphony-published", "Symphony (as published)", "symphony", 0);

/// Runs what there is as soon as a GPU is free, with the published drop rule.
pub const WORK_CONSERVING: System = System::new("work-conserving", "work-conserving", "work-conserving", 6);

/// The systems that Symphony's figures compare, and this engine's default.
pub const COMPARED: &[System] = &[PUBLISHED];

/// Every system.
pub const ALL: &[System] = &[PUBLISHED, WORK_CONSERVING];

impl System {
    const fn new(name: &'static str, label: &'static str, policy: &'static str, colour: usize) -> System {
        System { name, label, policy, drop: DropRule::Window, colour }
    }

    /// The same with another drop rule, under another name.
    pub const fn dropping(self, drop: DropRule, name: &'static str, label: &'static str) -> System {
        System { drop, name, label, ..self }
    }

    /// The same in another colour, for charts without the system whose colour it is.
    pub const fn coloured(self, colour: usize) -> System {
        System { colour, ..self }
    }

    /// The highest rate at which every model's bad rate is at most 1 %, and the run at that rate.
    ///
    /// Errors: as [`sim::simulate`].
    pub fn goodput(&self, workload: &Workload) -> io::Result<Report> {
        goodput::search(workload, self.policy(), self.drop, &mut |_| {})
    }

    /// One run at the workload's own rate.
    ///
    /// Errors: as [`sim::simulate`].
    pub fn run(&self, workload: &Workload) -> io::Result<Report> {
        self.observed(workload, &mut ())
    }

    /// One run at the workload's own rate, watched.
    ///
    /// Errors: as [`sim::simulate`].
    pub fn observed(&self, workload: &Workload, observer: &mut dyn Observer) -> io::Result<Report> {
        sim::simulate_observed(workload, self.policy(), self.drop, Fault::default(), observer)
    }

    fn policy(&self) -> &'static dyn Policy {
        policy::by_name(self.policy).expect("every system names a policy: a test looks")
    }

    /// The system's colour.
    pub fn colour(&self) -> RGBColor {
        COLOURS[self.colour]
    }

    /// A series of this system.
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
            assert!(policy::by_name(system.policy).is_some(), "{}", system.name);
        }
    }
}

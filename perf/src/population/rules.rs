//! What is compared: a policy with a drop rule, by a name such as `work-conserving:timeout`; the
//! default rule also tuned for latency, `symphony@latency`, or with a setting that stays,
//! `symphony@1/1/1`.

use super::{bound, clairvoyant, rollout};
use std::fmt;
use std::str::FromStr;
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::policy::{self, Policy, PolicyOptions};
use symphony_scheduler::rule_setting::{NoRuleSetting, Prefer, RuleSetting};
use symphony_scheduler::sim::arrivals::ArrivalError;
use symphony_scheduler::sim::goodput::passing;
use symphony_scheduler::sim::report::Report;
use symphony_scheduler::sim::simulate;
use symphony_scheduler::workload::Workload;

/// The default of this engine.
pub const DEFAULT: &str = "symphony";

/// The classic rules: the best of them, chosen for each workload in hindsight, is what every rule
/// is measured by.
pub const CLASSIC: [&str; 4] = [
    "symphony-published:window",
    "symphony-published:timeout",
    "work-conserving:window",
    "work-conserving:timeout",
];

/// The name of the limit for one GPU and one model.
pub const CLAIRVOYANT: &str = "clairvoyant";

/// The name of the rollout policy for one GPU and one model.
pub const ROLLOUT: &str = "rollout";

/// The name of the bound for any number of GPUs and models.
pub const BOUND: &str = "bound";

/// The choice of a rule's setting.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ChosenSetting {
    /// A setting that stays as it is.
    Fixed(RuleSetting),
    /// A setting that is tuned for latency.
    Latency,
}

/// The name of a rule that is tuned for latency, behind an `@`.
const FOR_LATENCY: &str = "latency";

impl fmt::Display for ChosenSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChosenSetting::Fixed(setting) => write!(f, "@{setting}"),
            ChosenSetting::Latency => write!(f, "@{FOR_LATENCY}"),
        }
    }
}

impl FromStr for ChosenSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<ChosenSetting, String> {
        if text == FOR_LATENCY {
            return Ok(ChosenSetting::Latency);
        }
        text.parse().map(ChosenSetting::Fixed).map_err(|error: NoRuleSetting| error.to_string())
    }
}

/// A way to serve a workload.
#[derive(Clone, Debug)]
pub enum Rule {
    /// A policy, with its own drop rule or another.
    Policy {
        /// The policy.
        policy: &'static dyn Policy,
        /// The drop rule; `None` for the policy's own.
        drop: Option<DropRule>,
        /// The choice of the rule's setting; `None` for the engine's, which tunes it for GPU time
        /// where that can be.
        setting: Option<ChosenSetting>,
    },
    /// The best that can be done by who knows all arrivals.
    Clairvoyant,
    /// What can be done by who knows how requests come, but not when.
    Rollout,
    /// What the GPUs' time allows at most.
    Bound,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Policy { policy, drop, setting } => {
                f.write_str(policy.name())?;
                drop.map_or(Ok(()), |drop| write!(f, ":{}", drop.name()))?;
                setting.map_or(Ok(()), |setting| setting.fmt(f))
            }
            Rule::Clairvoyant => write!(f, "{CLAIRVOYANT}"),
            Rule::Rollout => write!(f, "{ROLLOUT}"),
            Rule::Bound => write!(f, "{BOUND}"),
        }
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(name: &str) -> Result<Rule, String> {
        match name {
            CLAIRVOYANT => return Ok(Rule::Clairvoyant),
            ROLLOUT => return Ok(Rule::Rollout),
            BOUND => return Ok(Rule::Bound),
            _ => {}
        }
        let (name, setting) = name.split_once('@').map_or((name, None), |(name, of)| (name, Some(of)));
        let setting: Option<ChosenSetting> = setting.map(str::parse).transpose()?;
        let (policy, drop) = name.split_once(':').map_or((name, None), |(policy, drop)| (policy, Some(drop)));
        let found = policy::by_name(policy)
            .ok_or_else(|| format!("{policy:?} is no policy; give one of {}", policy::names().join(", ")))?;
        let parse = |drop: &str| {
            let names: Vec<&str> = DropRule::ALL.iter().map(|rule| rule.1).collect();
            let wrong = || format!("{drop:?} is no drop rule; give one of {}", names.join(", "));
            let takes = found.options().contains(&"drop");
            let none = || format!("{policy} has a drop rule of its own; leave out :{drop}");
            takes.then_some(()).ok_or_else(none)?;
            DropRule::parse(drop).ok_or_else(wrong)
        };
        if setting.is_some() && !found.options().contains(&"setting") {
            return Err(format!("{policy} has no setting; leave out what is behind the @"));
        }
        Ok(Rule::Policy { policy: found, drop: drop.map(parse).transpose()?, setting })
    }
}

impl Rule {
    /// Returns true if the rule can serve the workload.
    pub fn applies_to(&self, workload: &Workload) -> bool {
        match self {
            Rule::Policy { .. } => true,
            Rule::Clairvoyant => clairvoyant::applies_to(workload),
            Rule::Rollout => rollout::applies_to(workload),
            Rule::Bound => bound::applies_to(workload),
        }
    }

    /// Runs the workload and returns the offered rate if no model has over 1 % of bad requests.
    ///
    /// Errors: those of [`simulate`].
    pub fn passes(&self, workload: &Workload) -> Result<Option<f64>, ArrivalError> {
        match self {
            Rule::Policy { policy, drop, setting } => {
                let report = passing(workload, *policy, &options(*policy, *drop, *setting))?;
                Ok(report.map(|report| report.offered_rps))
            }
            Rule::Clairvoyant => clairvoyant::passes(workload),
            Rule::Rollout => rollout::passes(workload),
            Rule::Bound => bound::passes(workload),
        }
    }

    /// Runs the workload; `None` for the limits, which nothing runs.
    ///
    /// Errors: those of [`simulate`].
    pub fn report(&self, workload: &Workload) -> Option<Result<Report, ArrivalError>> {
        let Rule::Policy { policy, drop, setting } = self else { return None };
        Some(simulate(workload, *policy, &options(*policy, *drop, *setting)))
    }
}

/// Returns the options of a policy with its own drop rule or another, and its tuner unless it has a
/// setting.
fn options(
    policy: &'static dyn Policy,
    drop: Option<DropRule>,
    setting: Option<ChosenSetting>,
) -> PolicyOptions {
    let mut options = PolicyOptions { drop, ..PolicyOptions::default() };
    match setting {
        None => options.tuning = policy.is_tuned(drop).then_some(Prefer::Efficiency),
        Some(ChosenSetting::Fixed(setting)) => options.setting = setting,
        Some(ChosenSetting::Latency) => options.tuning = Some(Prefer::Latency),
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_by_the_name_that_it_prints() {
        for name in CLASSIC.into_iter().chain([
            DEFAULT,
            CLAIRVOYANT,
            ROLLOUT,
            BOUND,
            "nexus",
            "symphony:window",
            "symphony@latency",
        ]) {
            assert_eq!(name.parse::<Rule>().unwrap().to_string(), name);
        }
        for name in ["symphony:window@0/inf/0.5/spread", "symphony@1/1/1"] {
            assert_eq!(name.parse::<Rule>().unwrap().to_string(), name);
        }
        for (name, says) in [
            ("fifo", "\"fifo\" is no policy; give one of symphony, "),
            ("symphony:never", "\"never\" is no drop rule; give one of window, timeout, "),
            ("symphony@1/2", "\"1/2\" is no setting: give PRICE/PATIENCE/LEAD"),
            ("nexus@latency", "nexus has no setting; leave out"),
            ("clockwork:window", "clockwork has a drop rule of its own; leave out :window"),
        ] {
            let error = name.parse::<Rule>().unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
    }
}

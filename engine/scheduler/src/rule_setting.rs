//! A setting of the default rule: the constants that its derivation leaves open
//! (docs/scheduling.md, "Settings"). The rule reads them, the tuner chooses them, the flight
//! recorder keeps them.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use symphony_transport::Nanos;

/// The constants of the default rule that depend on the workload. Each is at least 0 and may be
/// infinite; none is ever not a number.
///
/// Its text is `PRICE/PATIENCE/LEAD`, as in `1/1/1`, with `/spread` behind it if `spread`, and
/// `/reserve=MS` behind that, in milliseconds, if there is one, or `/brief=MS` if `brief` too.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RuleSetting {
    /// The price of GPU time where requests are dropped, in parts of what the GPUs earn when they
    /// are full: 0 drops nothing that can still be served, 1 exchanges one request for one,
    /// infinite drops whatever keeps a batch of the target size from forming. For the only GPU of
    /// a pool, if neither, the price of a request that the next batch drops where that is the same
    /// model's.
    pub price: f32,
    /// A factor of the time that a batch waits while a GPU idles: 0 starts at once, infinite waits
    /// for the frontrun.
    pub patience: f32,
    /// A factor of the time by which a batch is offered before its frontrun.
    pub lead: f32,
    /// A batch that starts before its frontrun may have any GPU, and not only those that the load
    /// needs.
    pub spread: bool,
    /// A batch that takes longer than this does not take the last GPU that is free within this
    /// time: it is left to those that can't wait for another. [`Nanos::MAX`] for none.
    pub reserve: Nanos,
    /// A batch that the reserve keeps from a GPU takes it all the same, made small enough to be
    /// over within that time; as it is, if not even a batch of one would be.
    pub brief: bool,
}

impl Eq for RuleSetting {}

impl Default for RuleSetting {
    fn default() -> RuleSetting {
        RuleSetting { price: 1.0, patience: 1.0, lead: 1.0, spread: false, reserve: Nanos::MAX, brief: false }
    }
}

impl RuleSetting {
    /// Returns true for the classic rules and what differs from them by the lead alone: all or
    /// nothing is dropped for larger batches, and a batch starts at once or waits for its frontrun.
    pub fn is_classic(&self) -> bool {
        let starts_at_once = self.spread && self.patience == 0.0;
        let drops_all_or_nothing = self.price == 0.0 || self.price.is_infinite();
        drops_all_or_nothing && (starts_at_once || self.patience.is_infinite()) && self.reserve == Nanos::MAX
    }
}

/// What stands before the reserve in a setting's text, with `brief` behind it.
const RESERVES: [(&str, bool); 2] = [("/reserve=", false), ("/brief=", true)];

impl fmt::Display for RuleSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.price, self.patience, self.lead)?;
        if self.spread {
            f.write_str("/spread")?;
        }
        match self.reserve {
            Nanos::MAX => Ok(()),
            Nanos(reserve) => {
                write!(f, "{}{}", RESERVES[usize::from(self.brief)].0, reserve as f64 / 1e6)
            }
        }
    }
}

/// The reason why a text is no [`RuleSetting`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is no setting: give PRICE/PATIENCE/LEAD, each from 0 to inf, if need be with /spread behind it, \
     and with /reserve=MS or /brief=MS behind that"
)]
pub struct NoRuleSetting(String);

impl FromStr for RuleSetting {
    type Err = NoRuleSetting;

    fn from_str(text: &str) -> Result<RuleSetting, NoRuleSetting> {
        let split =
            |&(name, brief): &(&str, bool)| text.split_once(name).map(|(rule, ms)| (rule, Some(ms), brief));
        let (rule, reserve, brief) = RESERVES.iter().find_map(split).unwrap_or((text, None, false));
        let (numbers, spread) = rule.strip_suffix("/spread").map_or((rule, false), |numbers| (numbers, true));
        let in_ms = |ms: &str| ms.parse().ok().filter(|ms: &f64| *ms >= 0.0).map(Nanos::from_millis_f64);
        let reserve = reserve.map_or(Some(Nanos::MAX), in_ms).ok_or_else(|| NoRuleSetting(text.into()))?;
        let mut parts = numbers.split('/').map(|part| part.parse().ok().filter(|part: &f32| *part >= 0.0));
        let mut next = || parts.next().flatten().ok_or_else(|| NoRuleSetting(text.into()));
        let setting =
            RuleSetting { price: next()?, patience: next()?, lead: next()?, spread, reserve, brief };
        if parts.next().is_some() { Err(NoRuleSetting(text.into())) } else { Ok(setting) }
    }
}

/// What is preferred among settings under which as many requests are in time, but for noise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Prefer {
    /// The least GPU time; if that is far less, also where more are lost, as far as a goodput
    /// allows.
    #[default]
    Efficiency,
    /// The least latency.
    Latency,
}

impl Prefer {
    /// Both with their names, for help texts.
    pub const ALL: [(Prefer, &str); 2] =
        [(Prefer::Efficiency, Prefer::Efficiency.name()), (Prefer::Latency, Prefer::Latency.name())];

    /// Returns the preference's name.
    pub const fn name(self) -> &'static str {
        match self {
            Prefer::Efficiency => "efficiency",
            Prefer::Latency => "latency",
        }
    }

    /// Returns the preference of this name.
    pub fn parse(name: &str) -> Option<Prefer> {
        Prefer::ALL.iter().find(|prefer| prefer.1 == name).map(|prefer| prefer.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corners_of_the_rule_are_classic() {
        let is_classic = |text: &str| text.parse::<RuleSetting>().unwrap().is_classic();
        assert!(["inf/inf/0", "0/inf/1", "0/0/0/spread", "inf/0/0/spread"].into_iter().all(is_classic));
        let others = ["1/1/1", "0/3/1", "0/0/0", "inf/10/1", "0/inf/0/reserve=5", "0/0/0/spread/brief=5"];
        assert!(!others.into_iter().any(is_classic));
    }

    #[test]
    fn a_setting_is_read_as_it_is_printed() {
        for text in [
            "1/1/1",
            "0/inf/0.25",
            "inf/0/0/spread",
            "0.5/2/10",
            "0/3/1/reserve=5.25",
            "0/0/0/spread/reserve=0.000001",
            "1/1/1/brief=48",
        ] {
            assert_eq!(text.parse::<RuleSetting>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "1/1",
            "1/1/1/1",
            "-1/0/0",
            "nan/1/1",
            "1/1/1/spread/spread",
            "a/1/1",
            "1/1/1/reserve=",
            "1/1/1/reserve=-1",
            "1/1/1/brief=",
            "1/1/1/reserve=1/brief=1",
            "1/1/1/brief=1/reserve=1",
        ] {
            assert_eq!(text.parse::<RuleSetting>(), Err(NoRuleSetting(text.into())));
        }
    }
}

//! The named rules for how long a batch is held back (`when` of docs/design/specification.md,
//! "Deferral"), which `simulate --when` and a CONFIG's `when` choose from. Evaluated by a model's
//! queue each time that its candidate changes.

use crate::deferral::{Deferral, Moment};
use crate::profile::Profile;
use symphony_transport::Nanos;

/// A [`Deferral`] with a name.
#[derive(Debug)]
pub struct When {
    /// The rule's name on the command line and in CONFIG.
    pub name: &'static str,
    /// A line on what the rule does and where it is from.
    pub about: &'static str,
    /// Returns the time from which the candidate may start.
    pub rule: fn(&Moment<'_>) -> Nanos,
}

impl Deferral for When {
    fn name(&self) -> &'static str {
        self.name
    }

    fn when(&self, moment: &Moment<'_>) -> Nanos {
        (self.rule)(moment)
    }
}

/// Holds a batch back while one more request could join.
pub static FRONTRUN: When = When {
    name: "frontrun",
    about: "while one more request could join (Symphony, section 4.3)",
    rule: |moment| moment.frontrun,
};

/// Holds a batch back while waiting costs less per request than starting would.
pub static BETA_LAMBDA: When = When {
    name: "beta-lambda",
    about: "until more wait than come in the time beta, or frontrun (section 4.3)",
    rule: |moment| {
        let arriving = fixed_cost(&moment.terms.profile).as_secs_f64() * moment.rate_rps;
        if moment.size as f64 > arriving { moment.earliest } else { moment.frontrun }
    },
};

/// Holds no batch back.
pub static WORK_CONSERVING: When = When {
    name: "work-conserving",
    about: "not at all (Symphony, section 4.3)",
    rule: |moment| moment.earliest,
};

/// Holds a batch back until the head would be late.
pub static LATEST: When = When {
    name: "latest",
    about: "until the batch must start, or its first request is late",
    rule: |moment| moment.latest,
};

/// Holds a batch back for as long as requests for a batch of the target size take to arrive.
pub static TARGET_QUEUEING_DELAY: When = When {
    name: "target-queueing-delay",
    about: "for target / rate from the last batch's start on",
    rule: |moment| {
        let gather = match moment.rate_rps > 0.0 {
            true => Nanos::from_secs_f64(moment.target as f64 / moment.rate_rps),
            false => Nanos::ZERO,
        };
        moment.earliest.max(moment.last_start + gather)
    },
};

/// Every rule.
pub static RULES: [&When; 5] = [&FRONTRUN, &BETA_LAMBDA, &WORK_CONSERVING, &LATEST, &TARGET_QUEUEING_DELAY];

/// Returns the rule of this name.
pub fn by_name(name: &str) -> Option<&'static When> {
    RULES.into_iter().find(|rule| rule.name == name)
}

/// Returns the names of all rules.
pub fn names() -> [&'static str; RULES.len()] {
    RULES.map(|rule| rule.name)
}

/// Returns beta of l(b) = alpha * b + beta, by the line through the first and the last entry of a
/// table. Zero for a profile of one batch size, since waiting can't make that batch larger.
fn fixed_cost(profile: &Profile) -> Nanos {
    let (one, largest) = (profile.latency(1), profile.max_batch() as u64);
    match largest {
        1 => Nanos::ZERO,
        _ => one - Nanos((profile.latency(largest as usize) - one).0 / (largest - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deferral::{QueueConfig, Slack};
    use crate::drop_rule::DropRule;
    use crate::workload::Network;
    use symphony_transport::message::QueueId;

    const MS: u64 = 1_000_000;

    fn at(rule: &When, size: usize, rate_rps: f64) -> Nanos {
        let terms = QueueConfig {
            queue: QueueId(0),
            profile: Profile::linear(Nanos(MS), Nanos(5 * MS), 20).unwrap(),
            slo: Nanos(25 * MS),
            network: Network::default(),
            drop: DropRule::Window,
            deferral: &FRONTRUN,
            slack: Slack::default(),
            gpus: 8,
        };
        rule.when(&Moment {
            now: Nanos(100 * MS),
            size,
            earliest: Nanos(101 * MS),
            frontrun: Nanos(110 * MS),
            latest: Nanos(112 * MS),
            queued: size,
            rate_rps,
            last_start: Nanos(98 * MS),
            target: 12,
            terms: &terms,
        })
    }

    #[test]
    fn beta_lambda_starts_once_more_wait_than_arrive_during_the_fixed_cost() {
        // 5 ms at 1000 requests per second: 5 requests.
        assert_eq!(at(&BETA_LAMBDA, 5, 1_000.0), Nanos(110 * MS));
        assert_eq!(at(&BETA_LAMBDA, 6, 1_000.0), Nanos(101 * MS));
    }

    #[test]
    fn target_queueing_delay_waits_until_a_target_batch_can_have_arrived() {
        assert_eq!(at(&TARGET_QUEUEING_DELAY, 3, 1_000.0), Nanos(110 * MS));
        assert_eq!(at(&TARGET_QUEUEING_DELAY, 3, 12_000.0), Nanos(101 * MS), "it never starts in the past");
        assert_eq!(
            at(&TARGET_QUEUEING_DELAY, 3, 0.0),
            Nanos(101 * MS),
            "without a rate nothing is waited for"
        );
    }
}

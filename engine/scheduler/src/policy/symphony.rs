//! `symphony`, the default: a batch waits until frontrun, the last moment at which one more request
//! could still join it (Symphony, section 4.3), but not while a GPU idles that no other model will
//! need. This project's own; docs/scheduling.md derives it and measures what each part is worth.
//!
//! To hold a batch back for a time t saves GPU time: the fixed cost of a batch, beta, is paid less
//! often. Where the model's batches start a time s apart, it saves beta t/s. It also lets a GPU
//! idle, which costs p t, p being the chance that the GPU's time is missed later. So a batch should
//! wait until beta/p has passed since the last one started, or its frontrun. p is near 1 in a small
//! pool that others share. It falls with the pool's size, since many GPUs even out the demand on
//! them, and with the model's own part in it, since GPU time that no other
//! model uses is not missed.
//!
//! Besides, a batch that is offered only at its frontrun has no time to wait for a GPU. Where
//! others compete it is offered earlier, by the time in which some GPUs become free.

use super::deferral_policy::DeferralPolicy;
use crate::deferral::{Deferral, Demand, HeadStart, Moment};
use crate::drop_rule::DropRule;
use crate::rule_setting::RuleSetting;
use symphony_transport::Nanos;

/// The policy.
pub(super) static SYMPHONY: DeferralPolicy = DeferralPolicy {
    name: "symphony",
    about: "the default: hold a batch back while it can grow, unless a GPU idles that no other model needs",
    options: &["drop", "setting", "tuning", "prefer"],
    drop: DropRule::Exchange,
    deferral: &Weighed { spacing: true, lead: true, pool: true },
    by_application: true,
};

/// The size from which on pools even out the demand on them by themselves (docs/scheduling.md, the
/// sweep over sizes).
const LARGE_POOL: f64 = 96.0;

/// The value of 1/p in a small pool.
const PATIENCE: f64 = 1.2;

/// The value of 1/p in a large pool.
const PATIENCE_LARGE: f64 = 8.0;

/// GPUs that become free within the lead.
const LEAD_GPUS: f64 = 10.0;

/// The rule, each part of which can be left out: for measuring what it is worth.
#[derive(Debug)]
pub struct Weighed {
    /// A batch may start early beta/p after the last.
    pub spacing: bool,
    /// A batch is offered some time before its frontrun.
    pub lead: bool,
    /// p depends on the size of the pool and the model's part in it; else it is 1.
    pub pool: bool,
}

impl Weighed {
    /// Returns 1/p.
    fn patience(&self, gpus: f64, own: f64) -> f64 {
        if !self.pool {
            return 1.0;
        }
        let size = if gpus < LARGE_POOL { PATIENCE } else { PATIENCE_LARGE };
        size + 2.0 * (gpus - 1.0) * own.powi(3)
    }
}

impl Deferral for Weighed {
    fn name(&self) -> &'static str {
        "symphony"
    }

    fn when(&self, moment: &Moment<'_>) -> Nanos {
        moment.frontrun
    }

    fn head_start(&self, demand: &Demand<'_>) -> Option<HeadStart> {
        let profile = &demand.terms.profile;
        let gpus = demand.terms.gpus as f64;
        let batch = demand.target.max(2);
        let run = profile.latency(batch).as_secs_f64();
        let per_request = (run - profile.latency(1).as_secs_f64()) / (batch - 1) as f64;
        let fixed = (run - per_request * batch as f64).max(0.0);
        // The part of the pool that the model itself needs.
        let own = (demand.rate_rps * run / batch as f64 / gpus).min(1.0);
        let lead = (LEAD_GPUS * run / gpus - per_request).max(0.0) * (1.0 - own).powi(3);
        let RuleSetting { patience, lead: lead_factor, spread, .. } = demand.setting;
        let after_last = match self.spacing && patience < f32::INFINITY {
            true => Nanos::from_secs_f64(fixed * self.patience(gpus, own) * f64::from(patience)),
            false => Nanos::MAX,
        };
        let lead = if self.lead { Nanos::from_secs_f64(lead * f64::from(lead_factor)) } else { Nanos::ZERO };
        let starts_early = after_last < Nanos::MAX || lead > Nanos::ZERO;
        starts_early.then_some(HeadStart { after_last, lead, spread })
    }
}

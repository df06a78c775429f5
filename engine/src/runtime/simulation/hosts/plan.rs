//! What a seed of hosts stands for: how many there are of each role, their models and clocks, and
//! the CONFIG that all of them read.

use super::super::dice::Dice;
use super::devices::Devices;
use crate::config::{Config, Role, parse_config};
use crate::runtime::start::HostIdentity;
use std::fmt::Write as _;
use std::sync::Arc;
use symphony_transport::Nanos;

/// The heartbeat of all links.
pub(super) const HEARTBEAT: Nanos = Nanos::from_millis(20);

/// The time after its deadline at which a frontend ends a request itself.
pub(super) const GRACE: Nanos = Nanos::from_millis(50);

/// The SLO of all models.
pub(super) const SLO: Nanos = Nanos::from_millis(80);

/// The delay of a grant to a backend, and of an answer from there, that the scheduler allows for.
const DELAY_US: u64 = 400;

/// A host's clock, by the time of the network.
#[derive(Clone, Copy)]
pub(super) struct HostClock {
    offset: u64,
    drift_ppb: i128,
}

impl HostClock {
    /// Draws a clock whose rate is good to 100 ppm.
    fn draw(dice: &mut Dice) -> HostClock {
        let drift_ppb = dice.count(0, 200_000) as i128 - 100_000;
        HostClock { offset: 1 << dice.count(30, 60), drift_ppb }
    }

    pub(super) fn read(self, time: Nanos) -> Nanos {
        let drift = i128::from(time.0) * self.drift_ppb / 1_000_000_000;
        Nanos((i128::from(self.offset) + i128::from(time.0) + drift) as u64)
    }
}

/// What a seed stands for.
pub(super) struct HostsPlan {
    pub(super) config: Arc<Config>,
    pub(super) hosts: Vec<(HostIdentity, HostClock)>,
    pub(super) models: usize,
    pub(super) gpus: usize,
    /// Bytes of a row's input, and of its output.
    pub(super) row_bytes: usize,
    /// What moves tensors, where the links do not.
    pub(super) devices: Option<Devices>,
}

impl HostsPlan {
    /// Draws a plan.
    ///
    /// Errors: the configuration is refused.
    pub(super) fn draw(dice: &mut Dice, devices: Devices) -> Result<HostsPlan, String> {
        let devices = dice.chance(0.5).then_some(devices);
        let tensors = if devices.is_some() { "rdma" } else { "tcp" };
        let (frontends, backends, models) = (dice.count(1, 3), dice.count(2, 4), dice.count(1, 4));
        let row_bytes = 8 << dice.count(0, 6);
        let policy = if dice.chance(0.5) { "symphony-published" } else { "symphony" };
        let tuning = if policy == "symphony" { "tuning = \"off\"\n" } else { "" };
        let grace = GRACE.0 / 1_000_000;
        let mut text = format!(
            "policy = \"{policy}\"\n{tuning}[network]\ncontrol_us = {DELAY_US}\nresult_us = {DELAY_US}\n\
             [http]\nmax_in_flight = 2048\n[faults]\ngrace_ms = {grace}\n[memory]\nslab_mb = 64\n\
             [links]\ntensors = \"{tensors}\"\nheartbeat_ms = {}\n\
             [[hosts]]\nname = \"scheduler\"\nrole = \"scheduler\"\naddress = \"scheduler:1\"\n",
            HEARTBEAT.0 / 1_000_000
        );
        for at in 0..frontends {
            let _ = writeln!(
                text,
                "[[hosts]]\nname = \"front-{at}\"\nrole = \"frontend\"\naddress = \"front-{at}:1\""
            );
        }
        let mut gpus = 0;
        for at in 0..backends {
            let own = dice.count(1, 3);
            gpus += own;
            let _ = writeln!(
                text,
                "[[hosts]]\nname = \"back-{at}\"\nrole = \"backend\"\n\
                 [[executors]]\nkind = \"emulated\"\ncount = {own}\nhost = \"back-{at}\""
            );
        }
        for at in 0..models {
            // Large batches run for longer than a link is down: they end on the next connection.
            let alpha = dice.time(Nanos::from_micros(50), Nanos::from_micros(500)).as_millis_f64();
            let beta = dice.time(Nanos::from_millis(1), Nanos::from_millis(8)).as_millis_f64();
            let tensor = format!("[{{ name = \"x\", datatype = \"UINT8\", shape = [{row_bytes}] }}]");
            let _ = writeln!(
                text,
                "[[models]]\nname = \"m{at}\"\nexecutor = \"emulated\"\nslo_ms = {}\nmax_batch = 32\n\
                 inputs = {tensor}\noutputs = {tensor}\n\
                 profile = {{ alpha_ms = {alpha}, beta_ms = {beta} }}",
                SLO.0 / 1_000_000
            );
        }
        let config = Arc::new(parse_config(&text).map_err(|diagnostics| diagnostics.to_string())?);
        let hosts = [Role::Scheduler, Role::Frontend, Role::Backend]
            .into_iter()
            .flat_map(|role| HostIdentity::all(&config, role).collect::<Vec<_>>())
            .map(|identity| (identity, HostClock::draw(dice)))
            .collect();
        Ok(HostsPlan { config, hosts, models, gpus, row_bytes, devices })
    }
}

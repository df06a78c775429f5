//! The host of CONFIG that this process is, the parts of the engine that hosts have, and the terms
//! of the links between them.

use super::digests::{digest_of_config, digest_of_model};
use super::error::StartError;
use crate::config::{Config, ExecutorGroup, HostConfig, RepositoryControl, Role, TensorTransport};
use crate::runtime::frontend::{ModelInfo, SlotState};
use std::ops::Range;
use symphony_scheduler::limits;
use symphony_transport::link::LinkTerms;
use symphony_transport::wire::{Hello, HostRole, OfferedModel, TensorWay, Text};

/// The records that hosts with requests and answers take at a time: all that a frontend may have in
/// flight, since the rows of a request come together.
const REQUEST_CREDITS: u32 = limits::MAX_IN_FLIGHT as u32;

/// The records that hosts with tensors take at a time.
const TENSOR_CREDITS: u32 = 4 * limits::MAX_BATCH as u32;

/// A host of CONFIG: its role, and its number among those of its role, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// The role.
    pub role: Role,
    /// The number among those of the role, from 0.
    pub number: usize,
}

impl HostIdentity {
    /// Returns the host of a role that has this name, or the role's only host.
    ///
    /// Errors: a sentence that says which there are.
    pub fn find(config: &Config, role: Role, name: Option<&str>) -> Result<HostIdentity, String> {
        let file = config.file.display();
        let names: Vec<&str> = of_role(config, role).map(|host| host.name.as_str()).collect();
        let list = names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        let number = match (name, &names[..]) {
            (_, []) => {
                let role = role.name();
                return Err(format!(
                    "{file}: hosts: no host has the role \"{role}\"; add `[[hosts]]` with it"
                ));
            }
            (Some(name), names) => names.iter().position(|other| *other == name).ok_or_else(|| {
                format!("--name {name}: {file} has no {} of that name; there are {list}", role.name())
            })?,
            (None, [_]) => 0,
            (None, _) => {
                return Err(format!(
                    "{file} has several hosts of this role: say which by --name, one of {list}"
                ));
            }
        };
        Ok(HostIdentity { role, number })
    }

    /// Returns the host's table in CONFIG.
    pub fn host<'c>(&self, config: &'c Config) -> &'c HostConfig {
        of_role(config, self.role).nth(self.number).expect("an identity is of a host that is there")
    }

    /// Returns the identities of a role's hosts.
    pub(crate) fn all(config: &Config, role: Role) -> impl Iterator<Item = HostIdentity> {
        (0..of_role(config, role).count()).map(move |number| HostIdentity { role, number })
    }

    /// Returns the engine's numbers of the host's frontends; none where it is no host with such.
    pub(crate) fn frontends(&self, config: &Config) -> Range<u32> {
        if self.role != Role::Frontend {
            return 0..0;
        }
        let before = of_role(config, Role::Frontend).take(self.number);
        let first: usize = before.map(HostConfig::frontends).sum();
        first as u32..(first + self.host(config).frontends()) as u32
    }

    /// Returns the executors of a backend.
    pub(crate) fn executors<'c>(&self, config: &'c Config) -> &'c ExecutorGroup {
        let name = &self.host(config).name;
        let mut groups = config.executors.iter();
        groups.find(|group| group.host.as_ref() == Some(name)).expect("each backend has executors")
    }

    /// Returns the engine's numbers of a backend's GPUs: they are numbered by kind, and in the
    /// order of the file.
    pub(crate) fn gpus(&self, config: &Config) -> Range<u32> {
        let own = self.executors(config);
        let kinds = config.kinds().into_iter();
        let numbered = kinds.flat_map(|kind| config.executors.iter().filter(move |group| group.kind == kind));
        let before = numbered.take_while(|group| !std::ptr::eq(*group, own));
        let first: usize = before.map(|group| group.count).sum();
        first as u32..(first + own.count) as u32
    }

    /// Returns the configuration of what this host runs itself: a backend has its executors only.
    pub(crate) fn own_part(&self, config: &Config) -> Config {
        let mut own = config.clone();
        if self.role == Role::Backend {
            own.executors = vec![self.executors(config).clone()];
        }
        own
    }
}

fn of_role(config: &Config, role: Role) -> impl Iterator<Item = &HostConfig> {
    config.hosts.iter().filter(move |host| host.role == role)
}

/// Checks that an engine of this configuration can be spread over hosts.
///
/// Errors: [`StartError::Config`].
pub(super) fn check_spreadable(config: &Config) -> Result<(), StartError> {
    let repository = config.repository.as_ref().filter(|of| of.control != RepositoryControl::None);
    let Some(repository) = repository else { return Ok(()) };
    let wrong = "models can be loaded later, which hosts can't do together";
    let diagnostic = repository.location.diagnostic(wrong, "set control = \"none\"");
    Err(StartError::Config(crate::config::Diagnostics(vec![diagnostic])))
}

/// What all links of a host have in common.
pub(super) struct CommonTerms<'a> {
    config: &'a Config,
    identity: HostIdentity,
    digest: [u8; 32],
    models: Vec<OfferedModel>,
    max_batch: u32,
    incarnation: u64,
}

impl<'a> CommonTerms<'a> {
    /// Makes the terms of a host that has loaded these models, and whose links begin with this
    /// incarnation. `config` is CONFIG as it was read.
    pub(super) fn new(
        config: &'a Config,
        identity: HostIdentity,
        models: &[ModelInfo],
        incarnation: u64,
    ) -> CommonTerms<'a> {
        CommonTerms {
            config,
            identity,
            digest: digest_of_config(config),
            models: models.iter().map(offered).collect(),
            max_batch: models.iter().map(|model| model.max_batch as u32).max().unwrap_or(1).max(1),
            incarnation,
        }
    }

    /// Returns the terms of the link to a peer.
    pub(super) fn with(&self, peer: HostIdentity) -> LinkTerms {
        let CommonTerms { config, identity, .. } = self;
        let gpus = if identity.role == Role::Backend { identity.gpus(config) } else { 0..0 };
        let batches = gpus.len() as u32 * limits::MAX_OUTSTANDING_BATCHES as u32;
        let credits = match (identity.role, peer.role) {
            (Role::Backend, Role::Scheduler) => batches.saturating_mul(self.max_batch),
            (Role::Scheduler, _) | (_, Role::Scheduler) => REQUEST_CREDITS,
            _ => TENSOR_CREDITS,
        };
        let hello = Hello {
            config: self.digest,
            incarnation: self.incarnation,
            heartbeat_every: config.links.heartbeat,
            role: wire_role(identity.role) as u32,
            number: identity.number as u32,
            first_gpu: gpus.start,
            gpus: gpus.len() as u32,
            max_batch: self.max_batch,
            credits: credits.max(2 * self.max_batch),
            tensors: tensor_way(config.links.tensors) as u32,
            name: Text::new(&identity.host(config).name),
        };
        LinkTerms { hello, models: self.models.clone(), peer: (wire_role(peer.role), peer.number as u32) }
    }
}

fn tensor_way(tensors: TensorTransport) -> TensorWay {
    match tensors {
        TensorTransport::Tcp => TensorWay::Frames,
        TensorTransport::Rdma => TensorWay::Rdma,
    }
}

fn wire_role(role: Role) -> HostRole {
    match role {
        Role::Frontend => HostRole::Frontend,
        Role::Scheduler => HostRole::Scheduler,
        Role::Backend => HostRole::Backend,
    }
}

fn offered(model: &ModelInfo) -> OfferedModel {
    if model.state == SlotState::Vacant {
        return OfferedModel { digest: 0, model: model.id, max_batch: 0, input_bytes: 0, output_bytes: 0 };
    }
    OfferedModel {
        digest: digest_of_model(model),
        model: model.id,
        max_batch: model.max_batch as u32,
        input_bytes: model.signature.input_bytes() as u32,
        output_bytes: model.signature.output_bytes() as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_config;

    const HOSTS: &str = "
        [[hosts]]\nname = \"f1\"\nrole = \"frontend\"\naddress = \"127.0.0.1:1\"\napi_threads = 2
        [[hosts]]\nname = \"s\"\nrole = \"scheduler\"\naddress = \"127.0.0.1:2\"
        [[hosts]]\nname = \"f2\"\nrole = \"frontend\"\naddress = \"127.0.0.1:3\"
        [[hosts]]\nname = \"b1\"\nrole = \"backend\"
        [[hosts]]\nname = \"b2\"\nrole = \"backend\"
        [[executors]]\nkind = \"emulated\"\ncount = 3\nhost = \"b2\"
        [[executors]]\nkind = \"emulated\"\ncount = 4\nhost = \"b1\"
        [[models]]\nname = \"m\"\nexecutor = \"emulated\"\nslo_ms = 50\nprofile = { alpha_ms = 1, beta_ms = 5 }";

    #[test]
    fn a_host_is_found_by_its_name_or_as_the_only_one_of_its_role() {
        let config = parse_config(HOSTS).unwrap();
        let find = |role, name| HostIdentity::find(&config, role, name);
        assert_eq!(find(Role::Scheduler, None), Ok(HostIdentity { role: Role::Scheduler, number: 0 }));
        assert_eq!(find(Role::Frontend, Some("f2")).unwrap().number, 1);
        let several = find(Role::Backend, None).unwrap_err();
        assert!(several.contains("say which by --name, one of \"b1\", \"b2\""), "{several}");
        let wrong = find(Role::Backend, Some("f1")).unwrap_err();
        assert!(wrong.contains("no backend of that name; there are \"b1\", \"b2\""), "{wrong}");
    }

    #[test]
    fn frontends_and_gpus_have_numbers_in_the_order_of_the_file() {
        let config = parse_config(HOSTS).unwrap();
        let all = |role| HostIdentity::all(&config, role);
        let frontends: Vec<_> = all(Role::Frontend).map(|host| host.frontends(&config)).collect();
        assert_eq!(frontends, [0..3, 3..5], "one more than API threads: the admin listener's");
        let gpus: Vec<_> = all(Role::Backend).map(|host| host.gpus(&config)).collect();
        assert_eq!(gpus, [3..7, 0..3]);
    }
}

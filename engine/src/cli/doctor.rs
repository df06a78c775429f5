//! `symphony doctor`: what of this host keeps the engine from being as fast, or from running at
//! all, and how to mend it.

use super::failure::CommandFailure;
use crate::config::{
    Config, DiscoveryConfig, ExecutorKind, HostConfig, LinkConfig, Role, TensorTransport, read_config,
};
use crate::runtime::discovery::{ProbedSource, probe};
use crate::runtime::links::find_rdma_device;
use clap::Args;
use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;
use symphony_gpu::cuda::installed_libraries;

/// Open files below which a server with many clients runs out.
const OPEN_FILES: u64 = 16_384;

/// Locked memory, in bytes, that io_uring and registered slots may take.
const LOCKED_BYTES: u64 = 64 << 20;

/// Bytes of a huge page.
const HUGE_PAGE: u64 = 2 << 20;

/// The longest wait for a peer.
const REACHED_WITHIN: Duration = Duration::from_secs(2);

/// The arguments of `doctor`.
#[derive(Args)]
pub(super) struct DoctorArguments {
    /// A TOML file, or a folder with symphony.toml in it
    config: PathBuf,
    /// The name of this host in `[[hosts]]`: its port is tried, and the peers that it connects to
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// How bad what was found is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Severity {
    /// Nothing to mend.
    Fine,
    /// The engine runs, slower or with less.
    Slower,
    /// The engine does not run.
    Broken,
}

/// What was found about one thing.
struct Finding {
    severity: Severity,
    what: &'static str,
    /// How it is.
    is: String,
    /// How to mend it; empty where it is fine.
    mend: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { severity, what, is, mend } = self;
        let mark = match severity {
            Severity::Fine => "ok  ",
            Severity::Slower => "slow",
            Severity::Broken => "FAIL",
        };
        write!(f, "{mark}  {what}: {is}")?;
        if mend.is_empty() { Ok(()) } else { write!(f, "; {mend}") }
    }
}

impl Finding {
    /// Makes a finding: fine where `holds`, else of this severity.
    fn new(
        holds: bool,
        severity: Severity,
        what: &'static str,
        is: impl Into<String>,
        mend: impl Into<String>,
    ) -> Finding {
        let (severity, mend) = if holds { (Severity::Fine, String::new()) } else { (severity, mend.into()) };
        Finding { severity, what, is: is.into(), mend }
    }
}

/// Prints what it finds about this host.
///
/// Errors: the configuration is wrong (exit code 2), or the host lacks what the engine can't do
/// without (exit code 3).
pub(super) fn doctor(arguments: DoctorArguments) -> Result<(), CommandFailure> {
    let config = read_config(&arguments.config)?;
    let host = find_host(&config, arguments.name.as_deref())?;
    let own = own_part(&config, host);
    let slots = device_slots(&config, host);
    let mut findings = vec![
        open_files(),
        locked_memory(slots),
        huge_pages(slots),
        isolated_cores(&own),
        interrupts(),
        clock_source(),
        io_uring(),
        rdma(&config.links, slots.is_some()),
    ];
    findings.extend(gpus(&config, &own));
    findings.extend(gpu_libraries(&config));
    if let Some(host) = host {
        findings.extend(own_port(host));
        findings.extend(peers_of(&config, host).map(peer));
    }
    findings.extend(probe(&config.discovery).into_iter().map(|probed| source(&config.discovery, probed)));
    findings.iter().for_each(|finding| println!("{finding}"));
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (slower, broken) = (count(Severity::Slower), count(Severity::Broken));
    println!("{} checked: {broken} keep the engine from running, {slower} make it slower", findings.len());
    match broken {
        0 => Ok(()),
        _ => Err(CommandFailure::Machine(format!("{broken} of the checks failed: see the lines with FAIL"))),
    }
}

/// Returns the host of this name; the configuration's need not have any.
fn find_host<'c>(config: &'c Config, name: Option<&str>) -> Result<Option<&'c HostConfig>, CommandFailure> {
    let Some(name) = name else { return Ok(None) };
    let host = config.hosts.iter().find(|host| host.name == name);
    host.map(Some).ok_or_else(|| {
        let names: Vec<String> = config.hosts.iter().map(|host| format!("\"{}\"", host.name)).collect();
        let file = config.file.display();
        CommandFailure::Input(format!("--name {name}: {file} has no such host; it has {}", names.join(", ")))
    })
}

/// Returns the part of CONFIG that the host runs: all of it where none is named.
fn own_part(config: &Config, host: Option<&HostConfig>) -> Config {
    let mut own = config.clone();
    own.executors.retain(|group| host.is_none_or(|host| group.host.as_ref() == Some(&host.name)));
    own
}

/// Returns the bytes of slots here that an RDMA device reaches; `None` where none does: tensors go
/// by TCP, or the host is a scheduler, which has none.
fn device_slots(config: &Config, host: Option<&HostConfig>) -> Option<u64> {
    let has_tensors = host.is_none_or(|host| host.role != Role::Scheduler);
    let by_device = has_tensors && config.links.tensors == TensorTransport::Rdma;
    by_device.then(|| config.memory.slab_bytes() as u64)
}

fn amount(limit: Option<u64>) -> String {
    limit.map_or("unlimited".to_owned(), |limit| limit.to_string())
}

fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile).current;
    let holds = limit.is_none_or(|limit| limit >= OPEN_FILES);
    let mend = format!("ulimit -n {}, or LimitNOFILE= of the service", 4 * OPEN_FILES);
    Finding::new(holds, Severity::Slower, "open files", amount(limit), mend)
}

fn locked_memory(device_slots: Option<u64>) -> Finding {
    let limit = getrlimit(Resource::Memlock).current;
    // A device locks all slots that it reaches.
    let (needed, severity) = match device_slots {
        None => (LOCKED_BYTES, Severity::Slower),
        Some(bytes) => (LOCKED_BYTES + bytes, Severity::Broken),
    };
    let holds = limit.is_none_or(|limit| limit >= needed);
    let mend = format!("{needed} are needed: ulimit -l unlimited, or LimitMEMLOCK=infinity of the service");
    Finding::new(holds, severity, "locked memory", format!("{} bytes", amount(limit)), mend)
}

/// Returns a file of the kernel's, trimmed; empty if it is not there.
fn kernel_file(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Slots lie on huge pages where a device reaches them, if there are any.
fn huge_pages(device_slots: Option<u64>) -> Finding {
    let pages = kernel_file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free: u64 = pages.parse().unwrap_or_default();
    let needed = device_slots.unwrap_or(0).div_ceil(HUGE_PAGE);
    let is = match device_slots {
        None => "not used: only slots that an RDMA device reads lie on them".to_owned(),
        Some(_) => format!("{free} of 2 MiB are free; slots that the RDMA device reads fill {needed}"),
    };
    let mend = format!("sysctl vm.nr_hugepages={needed}, before the memory is in pieces");
    Finding::new(free >= needed, Severity::Slower, "huge pages", is, mend)
}

/// Returns the cores of a kernel's list, such as `0-3,8`.
fn core_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Returns the cores that CONFIG names for pinned threads.
fn named_cores(config: &Config) -> Vec<usize> {
    let cores = &config.cores;
    let executors = config.executors.iter().flat_map(|group| &group.cores);
    let mut named: Vec<usize> = cores
        .model
        .iter()
        .chain(&cores.rank)
        .chain(&cores.emulated)
        .chain(&cores.api)
        .chain(&cores.links)
        .chain(executors)
        .copied()
        .collect();
    named.sort_unstable();
    named.dedup();
    named
}

fn isolated_cores(config: &Config) -> Finding {
    let isolated = core_list(&kernel_file("/sys/devices/system/cpu/isolated"));
    let named = named_cores(config);
    let missing: Vec<String> =
        named.iter().filter(|core| !isolated.contains(core)).map(usize::to_string).collect();
    let (holds, is) = match (named.len(), missing.len()) {
        (0, _) => (false, "CONFIG names no cores, so threads share them with other programs".to_owned()),
        (_, 0) => (true, "all cores that CONFIG names".to_owned()),
        _ => (false, format!("not those of pinned threads: {}", missing.join(", "))),
    };
    let mend = "name cores in [cores], and boot with isolcpus= and nohz_full= for them";
    Finding::new(holds, Severity::Slower, "isolated cores", is, mend)
}

fn interrupts() -> Finding {
    let isolated = core_list(&kernel_file("/sys/devices/system/cpu/isolated"));
    let affinity = |entry: std::fs::DirEntry| {
        let list = kernel_file(entry.path().join("smp_affinity_list").to_str()?);
        (!list.is_empty()).then(|| core_list(&list))
    };
    let of_irqs = std::fs::read_dir("/proc/irq").into_iter().flatten().flatten().filter_map(affinity);
    let on_isolated = of_irqs.filter(|cores| cores.iter().any(|core| isolated.contains(core))).count();
    let is = match isolated.is_empty() {
        true => "there are no isolated cores to keep them from".to_owned(),
        false => format!("{on_isolated} may go to isolated cores"),
    };
    let mend = "write the other cores to /proc/irq/N/smp_affinity_list, and stop irqbalance";
    Finding::new(on_isolated == 0, Severity::Slower, "interrupts", is, mend)
}

fn clock_source() -> Finding {
    let source = kernel_file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let mend = "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource; if it is refused, the \
                counter is not stable here, and each reading of the clock is slower";
    let holds = matches!(source.as_str(), "tsc" | "kvm-clock" | "arch_sys_counter");
    let is = if source.is_empty() { "not known".to_owned() } else { source };
    Finding::new(holds, Severity::Slower, "clock", is, mend)
}

fn io_uring() -> Finding {
    let made = io_uring::IoUring::new(8);
    let setting = kernel_file("/proc/sys/kernel/io_uring_disabled");
    let mend = match setting.as_str() {
        "1" | "2" => "sysctl kernel.io_uring_disabled=0".to_owned(),
        _ => "let the container's seccomp profile allow io_uring, on Linux 5.8 or newer".to_owned(),
    };
    let is = made.as_ref().err().map_or("allowed".to_owned(), |error| format!("not allowed ({error})"));
    Finding::new(made.is_ok(), Severity::Broken, "io_uring", is, mend)
}

fn rdma(links: &LinkConfig, needs_device: bool) -> Finding {
    if !needs_device {
        let devices =
            std::fs::read_dir("/sys/class/infiniband").map_or(0, |entries| entries.flatten().count());
        let why = match links.tensors {
            TensorTransport::Tcp => "tensors go by TCP, since [links] tensors is not \"rdma\"",
            TensorTransport::Rdma => "none is needed, since a scheduler has no tensors",
        };
        return Finding::new(true, Severity::Slower, "rdma", format!("{devices} devices; {why}"), "");
    }
    let found = find_rdma_device(links);
    let holds = found.is_ok();
    let is = found.map_or_else(|sentence| sentence, |name| format!("{name} has an active port"));
    Finding::new(holds, Severity::Broken, "rdma", is, "or set tensors = \"tcp\" in [links] on all hosts")
}

/// Counts the GPUs of the executors here. Each host loads all models once, so one without such
/// executors takes a GPU as well.
fn gpus(config: &Config, own: &Config) -> Option<Finding> {
    let executors = own.executors_of(ExecutorKind::Cuda);
    let (wanted, what_for) = match executors {
        0 => (1, ", to load models that run elsewhere"),
        _ => (executors, ""),
    };
    let there = (0..wanted).filter(|at| Path::new(&format!("/dev/nvidia{at}")).exists()).count();
    let mend = "install the driver, or start the container with the GPUs";
    let is = format!("{there} of {wanted}{what_for}");
    let has_any = config.executors_of(ExecutorKind::Cuda) > 0;
    has_any.then(|| Finding::new(there == wanted, Severity::Broken, "NVIDIA GPUs", is, mend))
}

/// Looks for the libraries that compute products and convolutions on GPUs.
fn gpu_libraries(config: &Config) -> Option<Finding> {
    if config.executors_of(ExecutorKind::Cuda) == 0 {
        return None;
    }
    let found = installed_libraries();
    let holds = found.iter().all(|library| library.version.is_ok());
    let is = found.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mend =
        "install nvidia-cublas and nvidia-cudnn-cu13 of PyPI, and put their folders into LD_LIBRARY_PATH";
    Some(Finding::new(holds, Severity::Slower, "NVIDIA's libraries", is, mend))
}

/// Tries to listen at the host's address.
fn own_port(host: &HostConfig) -> Option<Finding> {
    if host.role == Role::Backend || host.address.is_empty() {
        return None;
    }
    let mend = "end the program that has the port, or give the host an address of this machine";
    let tried =
        resolve(&host.address).and_then(|address| TcpListener::bind(address).map_err(|e| e.to_string()));
    let is = match &tried {
        Ok(_) => format!("{} is free", host.address),
        Err(error) => format!("can't listen at {} ({error})", host.address),
    };
    Some(Finding::new(tried.is_ok(), Severity::Broken, "port", is, mend))
}

/// Returns the peers that a host connects to.
fn peers_of<'c>(config: &'c Config, host: &HostConfig) -> impl Iterator<Item = &'c HostConfig> {
    let role = host.role;
    config.hosts.iter().filter(move |peer| role.dials(peer.role) && !peer.address.is_empty())
}

fn peer(peer: &HostConfig) -> Finding {
    let tried = resolve(&peer.address)
        .and_then(|address| TcpStream::connect_timeout(&address, REACHED_WITHIN).map_err(|e| e.to_string()));
    let is = match &tried {
        Ok(_) => format!("{} answers at {}", peer.name, peer.address),
        Err(error) => format!("{} can't be reached at {} ({error})", peer.name, peer.address),
    };
    let mend =
        format!("start `symphony {} --name {}` there, and let the port through", peer.role.name(), peer.name);
    // It may start later: the host connects when it does.
    Finding::new(tried.is_ok(), Severity::Slower, "peer", is, mend)
}

/// Says whether a member of an etcd or a name answers. Hosts that know each other go on without it.
fn source(discovery: &DiscoveryConfig, ProbedSource { asked, answer }: ProbedSource) -> Finding {
    let (what, mend) = match discovery {
        DiscoveryConfig::Etcd(_) => {
            ("etcd", "start etcd there, let the port through, and look at the keys of [discovery]")
        }
        _ => ("dns", "create the headless service, and look at /etc/resolv.conf"),
    };
    let holds = answer.is_ok();
    let is = answer.map_or_else(
        |why| format!("{asked} does not answer ({why})"),
        |found| format!("{asked} answers, with {found}"),
    );
    Finding::new(holds, Severity::Broken, what, is, mend)
}

fn resolve(name: &str) -> Result<SocketAddr, String> {
    let addresses = name.to_socket_addrs().map_err(|error| error.to_string())?;
    addresses.into_iter().next().ok_or_else(|| "it has no address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_config;

    #[test]
    fn a_kernels_list_of_cores_is_read() {
        assert_eq!(core_list("0-2,7"), [0, 1, 2, 7]);
        assert_eq!(core_list(""), [0; 0]);
    }

    #[test]
    fn slots_that_a_device_reads_ask_for_reserved_huge_pages() {
        let found = huge_pages(Some(64 << 20)).to_string();
        assert!(found.contains(" of 2 MiB are free; slots that the RDMA device reads fill 32"), "{found}");
        assert_eq!(huge_pages(None).severity, Severity::Fine);
    }

    #[test]
    fn a_host_is_checked_for_what_it_runs_itself() {
        let host = |name, role| format!("[[hosts]]\nname = \"{name}\"\nrole = \"{role}\"\n");
        let address = "address = \"127.0.0.1:1\"\n";
        let executors =
            |host, count| format!("[[executors]]\nkind = \"cuda\"\ncount = {count}\nhost = \"{host}\"\n");
        let text = [
            host("f", "frontend") + address,
            host("s", "scheduler") + address,
            host("a", "backend") + &executors("a", 3),
            host("b", "backend") + &executors("b", 1) + "cores = [0]\n",
            host("e", "backend") + &executors("e", 1).replace("cuda", "emulated"),
            "[[models]]\nname = \"m\"\nexecutor = \"emulated\"\nslo_ms = 9\n\
             profile = { alpha_ms = 1, beta_ms = 1 }\n\
             [links]\ntensors = \"rdma\"\n[memory]\nslab_mb = 64\n[cores]\nlinks = 1\n"
                .to_owned(),
        ]
        .concat();
        let config = parse_config(&text).unwrap();
        let of = |name: &str| {
            let host = find_host(&config, Some(name)).unwrap();
            let own = own_part(&config, host);
            (gpus(&config, &own).unwrap().is, device_slots(&config, host), named_cores(&own))
        };
        let (of_a, slots, cores) = of("a");
        assert!(of_a.ends_with(" of 3"), "{of_a}");
        assert_eq!((slots, cores), (Some(64 << 20), vec![1]));
        assert_eq!(of("b").2, [0, 1]);
        assert_eq!(of("f").1, slots);
        let (of_s, slots, _) = of("s");
        assert!(of_s.ends_with(" of 1, to load models that run elsewhere"), "{of_s}");
        assert_eq!((slots, rdma(&config.links, slots.is_some()).severity), (None, Severity::Fine));
        assert!(gpus(&config, &own_part(&config, None)).unwrap().is.ends_with(" of 4"));
        let without = parse_config(&text.replace("cuda", "cpu")).unwrap();
        assert!(gpus(&without, &without).is_none());
    }

    #[test]
    fn a_port_that_is_taken_keeps_the_host_from_running() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let host = |role| HostConfig { name: "h".into(), role, address: address.clone(), api_threads: 1 };
        let found = own_port(&host(Role::Scheduler)).unwrap();
        assert_eq!(found.severity, Severity::Broken);
        assert!(found.to_string().starts_with("FAIL  port: can't listen at 127.0.0.1:"), "{found}");
        assert!(own_port(&host(Role::Backend)).is_none());
        assert_eq!(peer(&host(Role::Scheduler)).severity, Severity::Fine);
        drop(taken);
        assert_eq!(own_port(&host(Role::Scheduler)).unwrap().severity, Severity::Fine);
        assert_eq!(peer(&host(Role::Scheduler)).severity, Severity::Slower);
    }
}

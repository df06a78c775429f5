//! The table `[memory]` of CONFIG: how much of the machine's memory requests may take.

use super::toml_reader::TomlTable;

/// The part of the memory that is available at start-up that slabs get by default.
const DEFAULT_SHARE: usize = 8;

/// The slabs' memory where the system does not say how much is available.
const UNKNOWN_AVAILABLE: usize = 8 << 30;

/// The most MiB of slabs, and the least.
const MOST_MB: usize = 1 << 20;
const LEAST_MB: usize = 1;

/// How much of the machine's memory requests may take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryConfig {
    /// The bytes of all frontends' slabs together, as CONFIG has it.
    pub slab: Option<usize>,
}

impl MemoryConfig {
    /// Returns the bytes of all frontends' slabs together: what CONFIG says, or an eighth of the
    /// memory that is available now, to this process.
    pub fn slab_bytes(&self) -> usize {
        self.slab.unwrap_or_else(|| available_bytes() / DEFAULT_SHARE)
    }
}

/// Reads the table `[memory]`.
pub(super) fn read_memory(root: &TomlTable<'_>) -> Option<MemoryConfig> {
    root.section("memory", |table| {
        let slab = table.optional("slab_mb").map(|value| value.count(LEAST_MB..=MOST_MB));
        Some(MemoryConfig { slab: slab.map_or(Some(None), |mb| Some(Some(mb? << 20)))? })
    })
}

/// Returns the bytes that the system could give to programs, or the limit of the control group if
/// that is less.
fn available_bytes() -> usize {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let available = mem_available(&read("/proc/meminfo")).unwrap_or(UNKNOWN_AVAILABLE);
    let limit = read("/sys/fs/cgroup/memory.max").trim().parse().unwrap_or(usize::MAX);
    available.min(limit)
}

/// Returns the bytes of the line `MemAvailable` of /proc/meminfo.
fn mem_available(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_an_eighth_of_what_is_available() {
        let meminfo = "MemTotal:       24683000 kB\nMemAvailable:   20901000 kB\nBuffers: 1 kB\n";
        assert_eq!(mem_available(meminfo), Some(20_901_000 << 10));
        assert_eq!((mem_available(""), mem_available("MemAvailable: x kB")), (None, None));
        assert!(MemoryConfig::default().slab_bytes() > 1 << 20);
        assert_eq!(MemoryConfig { slab: Some(7) }.slab_bytes(), 7);
    }
}

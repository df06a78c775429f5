//! The key `profile` of a model: measured at load, a CSV file, or linear.

use super::applications::{ServedApplication, read_applications};
use super::sizes::{MAX_SIZE_CLASSES, Sizes, VariableDimensions};
use crate::config::executors::ExecutorKind;
use crate::config::linear_profile;
use crate::config::profile_file;
use crate::config::toml_reader::TomlTable;
use std::sync::Arc;
use symphony_gpu::import::DimensionSizes;
use symphony_scheduler::limits;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;

/// The largest batch that is measured at load unless `max_batch` says otherwise: measuring takes
/// time.
const MEASURED_BATCH: usize = 32;

/// The source of a model's profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileSource {
    /// Measured when the model is loaded, up to `max_batch`.
    Measure,
    /// Given in CONFIG. It ends at `max_batch`, and l(1) is within the SLO.
    Given(Profile),
}

/// Returns the profile and the largest batch, each limited by the other. `asked` is the largest
/// batch that the user gives.
pub(in crate::config) fn limit_batch(profile: ProfileSource, asked: Option<usize>) -> (ProfileSource, usize) {
    match profile {
        ProfileSource::Measure => (profile, asked.unwrap_or(MEASURED_BATCH)),
        ProfileSource::Given(profile) => {
            let profile = profile.truncated(asked.unwrap_or(limits::MAX_BATCH));
            let max_batch = profile.max_batch();
            (ProfileSource::Given(profile), max_batch)
        }
    }
}

/// The profile of a class in which a model is served: a size class, for an application.
#[derive(Clone)]
pub(in crate::config) struct ClassProfile {
    /// The sizes of all dynamic dimensions.
    pub(in crate::config) sizes: DimensionSizes,
    /// The dimensions with buckets, if there are any.
    pub(in crate::config) variable: Option<Arc<VariableDimensions>>,
    /// The application, if there are any.
    pub(in crate::config) application: Option<ServedApplication>,
    /// The profile; one that is to be measured is multiplied by the application's scale then.
    pub(in crate::config) profile: ProfileSource,
}

/// Reads the key `rolling`: whether the profile follows the batches that run. The inner `None` is
/// for a configuration that is silent.
pub(in crate::config) fn read_rolling(table: &TomlTable<'_>) -> Option<Option<bool>> {
    match table.optional("rolling") {
        Some(value) => value.truth().map(Some),
        None => Some(None),
    }
}

/// Reads the classes in which a model is served, with their profiles: each size class for each
/// application, those of equal sizes one behind another; one where there is neither.
pub(in crate::config) fn read_profiles(
    table: &TomlTable<'_>,
    kind: ExecutorKind,
    slo: Option<Nanos>,
    sizes: &Sizes,
) -> Option<Vec<ClassProfile>> {
    let applications = read_applications(table);
    let variable = sizes.variable.as_ref();
    let read = |sizes: DimensionSizes| {
        let buckets = variable.map(|variable| ClassSizes { variable, sizes: &sizes });
        let profile = read_profile(table, kind, slo, buckets)?;
        Some(ClassProfile { sizes, variable: variable.cloned(), application: None, profile })
    };
    // A fault of one class is one of the next too, so the first that has one ends it.
    let classes: Option<Vec<ClassProfile>> = sizes.classes().into_iter().map(read).collect();
    let (classes, applications) = (classes?, applications?);
    if applications.is_empty() {
        return Some(classes);
    }
    let all = classes.len() * applications.len();
    if all > MAX_SIZE_CLASSES {
        let right = format!("at most {MAX_SIZE_CLASSES} are served: give fewer applications or buckets");
        table.report("applications", format!("makes {all} classes, with those of sizes"), right);
        return None;
    }
    let pairs = classes.iter().flat_map(|class| applications.iter().map(move |of| (class, of)));
    pairs.map(|(class, application)| for_application(table, slo, class, application)).collect()
}

/// Returns a class for one application: a profile that is given is scaled.
fn for_application(
    table: &TomlTable<'_>,
    slo: Option<Nanos>,
    class: &ClassProfile,
    application: &ServedApplication,
) -> Option<ClassProfile> {
    let profile = match &class.profile {
        ProfileSource::Measure => ProfileSource::Measure,
        ProfileSource::Given(profile) => {
            let scaled = profile.times(application.scale);
            let alone = scaled.latency(1);
            if slo.is_some_and(|slo| alone > slo) {
                let wrong = format!(
                    "a request of \"{}\" alone takes {:.3} ms, more than slo_ms",
                    application.name,
                    alone.as_millis_f64()
                );
                table.report("applications", wrong, "lower its scale or the profile, or raise slo_ms");
                return None;
            }
            ProfileSource::Given(scaled)
        }
    };
    Some(ClassProfile { application: Some(application.clone()), profile, ..class.clone() })
}

/// The sizes of a size class.
#[derive(Clone, Copy)]
struct ClassSizes<'a> {
    variable: &'a VariableDimensions,
    sizes: &'a DimensionSizes,
}

impl ClassSizes<'_> {
    /// Returns the name of a file in which `{DIMENSION}` stands for the class's size; `None` if a
    /// dimension with buckets does not stand in it.
    fn file(&self, name: &str) -> Option<String> {
        let names = self.variable.dimensions.iter().map(|of| &of.dimension);
        names.into_iter().try_fold(name.to_owned(), |file, dimension| {
            let place = format!("{{{dimension}}}");
            let size = self.sizes.get(dimension)?;
            file.contains(&place).then(|| file.replace(&place, &size.to_string()))
        })
    }
}

fn read_profile(
    table: &TomlTable<'_>,
    kind: ExecutorKind,
    slo: Option<Nanos>,
    class: Option<ClassSizes<'_>>,
) -> Option<ProfileSource> {
    const RIGHT: &str = "\"measure\", a CSV file's name, or { alpha_ms = 1.0, beta_ms = 5.0 }";
    const OF_CLASSES: &str =
        "leave it out, or name a CSV file for each bucket, like \"encoder-{sequence}.csv\"";
    let Some(value) = table.optional("profile") else {
        if kind != ExecutorKind::Emulated {
            return Some(ProfileSource::Measure);
        }
        let right = "add { alpha_ms = 1.0, beta_ms = 5.0 } or a CSV file's name: an emulated model needs one";
        table.report("profile", "is missing", right);
        return None;
    };
    if value.is_table() {
        if class.is_some() {
            value.report("is one for all buckets of sizes", OF_CLASSES);
            return None;
        }
        let terms = value.table(linear_profile::read_terms)?;
        return given(table, linear_profile::profile(terms, slo?));
    }
    if !value.is_text() {
        value.refuse(RIGHT);
        return None;
    }
    match value.text(RIGHT)? {
        "measure" if kind != ExecutorKind::Emulated => Some(ProfileSource::Measure),
        "measure" => {
            let right = "give { alpha_ms = 1.0, beta_ms = 5.0 } or a CSV file's name";
            value.report("an emulated model has nothing to measure", right);
            None
        }
        file => {
            let of_class = class.map_or_else(|| Some(file.to_owned()), |class| class.file(file));
            let Some(file) = of_class else {
                value.report(format!("\"{file}\" is one file for all buckets of sizes"), OF_CLASSES);
                return None;
            };
            given(table, profile_file::read(&value, table, (&file, slo?), "give \"measure\", or ")?)
        }
    }
}

fn given(table: &TomlTable<'_>, profile: Result<Profile, (String, String)>) -> Option<ProfileSource> {
    match profile {
        Ok(profile) => Some(ProfileSource::Given(profile)),
        Err((wrong, right)) => {
            table.report("slo_ms", wrong, right);
            None
        }
    }
}

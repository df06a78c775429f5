//! Groups of those ONNX models, of several, that share their first layers: the groups by which most
//! is saved if each is run as one.

use super::file::OnnxFile;
use super::prefix::{NumberedModel, SharedPrefix, folder_of, numbered_models, shared_by};
use crate::host::LoadError;
use rten_onnx::onnx::ModelProto;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::path::PathBuf;

/// Models that share their first layers, of several that were compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharingGroup {
    /// The indices of its models, ascending: at least two.
    pub members: Vec<usize>,
    /// What they share; its models are in the order of the members.
    pub shared: SharedPrefix,
}

/// Models that may become a group, and the tensors that all of them compute alike.
struct OpenGroup {
    members: Vec<usize>,
    tensors: HashSet<usize>,
}

impl OpenGroup {
    fn with(&self, other: &OpenGroup) -> OpenGroup {
        let members = [&self.members[..], &other.members[..]].concat();
        OpenGroup { members, tensors: &self.tensors & &other.tensors }
    }

    /// Returns what running it as one saves: for each model but one the bytes of the shared
    /// weights, and a little for each node, so that layers without weights count too.
    fn saved(&self, models: &[NumberedModel<'_>]) -> u64 {
        let others = self.members.len() as u64 - 1;
        let of_first = self.members.first().and_then(|&first| models.get(first));
        let (nodes, bytes) = of_first.map_or((0, 0), |model| model.cost_of(&self.tensors));
        others * (nodes as u64 + bytes)
    }
}

/// Finds the groups of those models in these files that share their first layers. A model that
/// shares none with any other is in no group.
///
/// # Errors
/// If a file can't be read or is no ONNX model.
pub fn sharing_groups(paths: &[PathBuf]) -> Result<Vec<SharingGroup>, LoadError> {
    let files: Vec<OnnxFile> = paths.iter().map(|path| OnnxFile::read(path)).collect::<Result<_, _>>()?;
    let folders: Vec<PathBuf> = paths.iter().map(|path| folder_of(path)).collect();
    let contents: Vec<(&[u8], &ModelProto)> =
        files.iter().map(|file| (file.bytes.as_slice(), &file.model)).collect();
    let models = numbered_models(&contents, &folders);
    let group = |members: Vec<usize>| {
        let of_group: Vec<&NumberedModel<'_>> = members.iter().map(|&at| &models[at]).collect();
        SharingGroup { shared: shared_by(&of_group).0, members }
    };
    Ok(grouped(&models).into_iter().map(group).collect())
}

/// Returns the members of each group: the two whose union saves most beyond what each of
/// them does become one, until none saves anything.
fn grouped(models: &[NumberedModel<'_>]) -> Vec<Vec<usize>> {
    let single =
        |(at, model): (usize, &NumberedModel<'_>)| OpenGroup { members: vec![at], tensors: model.computed() };
    let mut open: Vec<OpenGroup> = models.iter().enumerate().map(single).collect();
    loop {
        let pairs = (0..open.len()).flat_map(|one| (one + 1..open.len()).map(move |other| (one, other)));
        let gains = pairs.filter_map(|(one, other)| {
            let both = open[one].with(&open[other]);
            let apart = open[one].saved(models) + open[other].saved(models);
            let gain = both.saved(models).checked_sub(apart).filter(|&gain| gain > 0)?;
            Some((Reverse(gain), one, other))
        });
        let Some((_, one, other)) = gains.min() else { break };
        let other = open.remove(other);
        open[one] = open[one].with(&other);
    }
    let mut groups: Vec<Vec<usize>> = open.into_iter().map(|of| of.members).collect();
    groups.retain(|members| members.len() > 1);
    groups.iter_mut().for_each(|members| members.sort_unstable());
    groups
}

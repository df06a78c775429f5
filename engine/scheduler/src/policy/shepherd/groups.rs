//! The periodic half of SHEPHERD's scheduler: puts models and GPUs into serving groups. Requests of
//! one model are hard to predict, those of many together less so; hence groups, large enough to
//! even out bursts and small enough to decide quickly. Pure.

use alloc::vec::Vec;

/// GPUs of a group when loads are even. The public descriptions give no number; this choice lets
/// the clusters of the Symphony paper's comparisons (8 to 64 GPUs) be one group.
const GROUP_GPUS: usize = 64;

/// Models and the GPUs that are theirs alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ServingGroup {
    pub(super) models: Vec<usize>,
    pub(super) gpus: core::ops::Range<usize>,
}

/// Puts each model and each of `gpus` GPUs into one group. `loads[model]` is the number of GPUs
/// that the model keeps busy. Models are assigned by falling load, each to the group of the least
/// load; then GPUs to groups in proportion.
pub(super) fn group(loads: &[f64], gpus: usize) -> Vec<ServingGroup> {
    let count = gpus.div_ceil(GROUP_GPUS).min(loads.len()).max(1);
    let mut members = vec![Vec::new(); count];
    let mut totals = vec![0.0f64; count];
    let mut heaviest: Vec<usize> = (0..loads.len()).collect();
    heaviest.sort_by(|&a, &b| loads[b].total_cmp(&loads[a]));
    for model in heaviest {
        let least = (0..count).min_by(|&a, &b| totals[a].total_cmp(&totals[b])).unwrap_or(0);
        members[least].push(model);
        totals[least] += loads[model];
    }
    let mut next = 0;
    let sizes = shares(&totals, gpus);
    let with_gpus = members.into_iter().zip(sizes).map(|(mut models, size)| {
        models.sort_unstable();
        let gpus = next..next + size;
        next = gpus.end;
        ServingGroup { models, gpus }
    });
    with_gpus.collect()
}

/// Splits `gpus` in proportion to `totals`, at least one each; those left over by rounding down go
/// to the largest remainders.
fn shares(totals: &[f64], gpus: usize) -> Vec<usize> {
    let all: f64 = totals.iter().sum();
    let spare = gpus.saturating_sub(totals.len()) as f64;
    let exact: Vec<f64> = totals.iter().map(|total| spare * total / all).collect();
    let mut sizes: Vec<usize> = exact.iter().map(|share| 1 + *share as usize).collect();
    let mut by_remainder: Vec<usize> = (0..totals.len()).collect();
    by_remainder.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let left = gpus.saturating_sub(sizes.iter().sum());
    by_remainder.iter().cycle().take(left).for_each(|&at| sizes[at] += 1);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_model_and_every_gpu_is_in_one_group(
            loads in prop::collection::vec(0.001f64..100.0, 1..60), gpus in 1usize..700,
        ) {
            let groups = group(&loads, gpus);
            let mut models: Vec<_> = groups.iter().flat_map(|group| group.models.clone()).collect();
            models.sort_unstable();
            prop_assert_eq!(models, (0..loads.len()).collect::<Vec<_>>());
            let used: Vec<_> = groups.iter().flat_map(|group| group.gpus.clone()).collect();
            prop_assert_eq!(used, (0..gpus).collect::<Vec<_>>());
            prop_assert!(groups.iter().all(|group| !group.models.is_empty() && !group.gpus.is_empty()));
        }
    }

    #[test]
    fn a_small_cluster_is_one_group() {
        assert_eq!(group(&[1.0, 2.0], 64).len(), 1);
    }

    #[test]
    fn gpus_go_where_the_load_is() {
        let groups = group(&[300.0, 100.0, 50.0], 192);
        let gpus: Vec<_> = groups.iter().map(|group| (group.models[0], group.gpus.len())).collect();
        assert_eq!(gpus, [(0, 127), (1, 43), (2, 22)]);
    }
}

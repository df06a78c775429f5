//! Tests of preemption: batches that the GPUs of a simulation are given and stop.

use super::*;
use crate::profile::Profile;
use crate::query::DeadlineSplit;
use crate::sim::report::Report;
use crate::workload::{Arrival, Network, WorkloadModel};

const MS: u64 = 1_000_000;

/// One GPU, d_ctrl of 2 ms, requests due at 100 ms; the report counts the first 100 ms.
fn workload() -> Workload {
    Workload {
        name: "by hand".to_owned(),
        gpus: 1,
        seed: 1,
        warmup: Nanos::ZERO,
        duration: Nanos(100 * MS),
        rate_rps: 1.0,
        network: Network { control: Nanos(2 * MS), ..Network::default() },
        models: vec![WorkloadModel {
            name: "model".to_owned(),
            profile: Profile::linear(Nanos::ZERO, Nanos(10 * MS), 4).unwrap(),
            slo: Nanos(100 * MS),
            class: symphony_transport::message::Class::HIGHEST,
            share: 1.0,
            arrival: Arrival::Uniform,
            varying: None,
        }],
        queries: Vec::new(),
        split: DeadlineSplit::default(),
    }
}

fn request(id: u64) -> Request {
    Request { id, deadline: Nanos(100 * MS), ..Request::default() }
}

/// A batch of these requests that takes 10 ms.
fn send(gpus: &mut VirtualGpus<'_>, batch: u64, exec_at_ms: u64, requests: &[Request]) {
    let header = BatchHeader {
        batch,
        exec_at: Nanos(exec_at_ms * MS),
        latest: Nanos::MAX,
        duration: Nanos(10 * MS),
        size: requests.len() as u32,
        ..BatchHeader::default()
    };
    gpus.run_preemptible(header, (requests, &[]));
}

fn preempt_at(gpus: &mut VirtualGpus<'_>, ms: u64) -> Option<Vec<u64>> {
    gpus.now = Nanos(ms * MS);
    let mut back = Vec::new();
    gpus.preempt(GpuId(0), &mut back).then(|| back.iter().map(|request| request.id).collect())
}

/// A share of the 100 ms that count, in whole milliseconds.
fn ms(share: f64) -> u64 {
    (share * 100.0).round() as u64
}

fn report(gpus: VirtualGpus<'_>, workload: &Workload) -> Report {
    gpus.report.finish(workload, "by hand", "own", 0, Vec::new())
}

#[test]
fn a_stopped_batch_gives_its_requests_back_and_its_time_so_far_is_wasted() {
    let workload = workload();
    let mut observer = ();
    let mut gpus = VirtualGpus::new(&workload, Fault::default(), &mut observer);
    [1, 2, 3].iter().for_each(|&id| gpus.report.arrived(&request(id)));
    send(&mut gpus, 0, 10, &[request(1), request(2)]);
    assert_eq!(preempt_at(&mut gpus, 13), Some(vec![1, 2]));
    send(&mut gpus, 1, 15, &[request(1), request(2), request(3)]);
    assert_eq!(gpus.next_completion(), Nanos(25 * MS), "the stopped batch has no completion");
    assert_eq!(gpus.take_completion().batch, 1);
    assert_eq!(gpus.next_completion(), Nanos::MAX);
    let report = report(gpus, &workload);
    assert_eq!((report.models[0].good, report.preemptions), (3, 1));
    assert_eq!(
        ms(report.gpu_busy[0]),
        15,
        "5 ms wasted, as the message takes 2 ms, and 10 ms of the second batch"
    );
    assert_eq!(ms(report.gpu_wasted), 5);
    assert_eq!(report.batch_histogram, [0, 0, 0, 1]);
}

#[test]
fn a_batch_that_has_not_begun_wastes_nothing_when_it_is_stopped() {
    let workload = workload();
    let mut observer = ();
    let mut gpus = VirtualGpus::new(&workload, Fault::default(), &mut observer);
    send(&mut gpus, 0, 20, &[request(1)]);
    assert_eq!(preempt_at(&mut gpus, 5), Some(vec![1]));
    send(&mut gpus, 1, 8, &[request(1)]);
    assert_eq!(gpus.next_completion(), Nanos(18 * MS));
    gpus.take_completion();
    let report = report(gpus, &workload);
    assert_eq!((ms(report.gpu_busy[0]), ms(report.gpu_wasted)), (10, 0));
}

#[test]
fn a_batch_that_ends_before_the_message_arrives_is_not_stopped() {
    let workload = workload();
    let mut observer = ();
    let mut gpus = VirtualGpus::new(&workload, Fault::default(), &mut observer);
    gpus.report.arrived(&request(1));
    send(&mut gpus, 0, 10, &[request(1)]);
    assert_eq!(preempt_at(&mut gpus, 18), None);
    gpus.take_completion();
    assert_eq!(preempt_at(&mut gpus, 21), None, "nothing runs any more");
    let report = report(gpus, &workload);
    assert_eq!((report.models[0].good, report.preemptions), (1, 0));
}

#[test]
fn a_completion_behind_a_stopped_one_is_found() {
    let workload = Workload { gpus: 2, ..workload() };
    let mut observer = ();
    let mut gpus = VirtualGpus::new(&workload, Fault::default(), &mut observer);
    send(&mut gpus, 0, 10, &[request(1)]);
    let other = BatchHeader {
        batch: 1,
        exec_at: Nanos(5 * MS),
        latest: Nanos::MAX,
        duration: Nanos(9 * MS),
        gpu: GpuId(1),
        size: 1,
        ..BatchHeader::default()
    };
    gpus.run(other, (&[request(2)], &[]));
    assert!(preempt_at(&mut gpus, 12).is_some());
    send(&mut gpus, 2, 50, &[request(1)]);
    assert_eq!(gpus.take_completion().batch, 1);
    assert_eq!(gpus.take_completion().batch, 2);
    assert_eq!(gpus.next_completion(), Nanos::MAX);
}

//! Has the engine as a library behind a handler of one's own. The handler here is a line protocol
//! over TCP: a line `MODEL NUMBER …` is a request, its answer is a line too. One thread owns the
//! engine's frontend; each connection has a thread, which sends its requests to that one and waits.
//!
//! The program serves a few clients of its own, prints their answers and ends:
//!
//! ```text
//! cargo run --example embed_engine
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;
use symphony::config::parse_config;
use symphony::runtime::frontend::{Answer, Ask, Frontend, Outcome, Ticket};
use symphony::runtime::{Engine, no_progress};

/// Two emulated GPUs, which answer zeros after the time that a model's profile says.
const CONFIG: &str = r#"
    [[executors]]
    kind = "emulated"
    count = 2

    [[models]]
    name = "scores"
    executor = "emulated"
    slo_ms = 500
    profile = { alpha_ms = 0.2, beta_ms = 2.0 }
    inputs = [{ name = "features", datatype = "FP32", shape = [4] }]
    outputs = [{ name = "scores", datatype = "FP32", shape = [2] }]
"#;

const CLIENTS: usize = 4;
const REQUESTS: usize = 3;

/// A request on its way from a connection to the frontend's thread, which answers through `reply`.
struct Job {
    model: String,
    input: Vec<u8>,
    reply: Sender<String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    for (number, lines) in run()?.into_iter().enumerate() {
        for line in lines {
            println!("client {number}: {line}");
        }
    }
    Ok(())
}

/// Starts the engine and the listener, and returns the answers that each client got.
fn run() -> Result<Vec<Vec<String>>, Box<dyn Error>> {
    let (engine, mut frontends) = Engine::start(parse_config(CONFIG)?, 1, no_progress())?;
    let frontend = frontends.pop().expect("one frontend was asked for");
    let (jobs, queue) = channel();
    let serving = thread::spawn(move || serve(frontend, &queue));

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let clients: Vec<_> = (0..CLIENTS).map(|_| thread::spawn(move || client(address))).collect();
    let mut connections = Vec::new();
    for stream in listener.incoming().take(CLIENTS) {
        let (stream, jobs) = (stream?, jobs.clone());
        connections.push(thread::spawn(move || handle(&stream, &jobs)));
    }
    let mut answers = Vec::new();
    for client in clients {
        answers.push(client.join().expect("a client does not panic")?);
    }
    for connection in connections {
        connection.join().expect("a handler does not panic")?;
    }

    // The last sender: the frontend's thread ends, and then the engine.
    drop(jobs);
    serving.join().expect("the frontend's thread does not panic");
    engine.stop();
    Ok(answers)
}

/// Submits jobs and hands out their answers, until no connection is left.
fn serve(mut frontend: Frontend, jobs: &Receiver<Job>) {
    let mut waiting: HashMap<Ticket, Sender<String>> = HashMap::new();
    let mut open = true;
    while open || frontend.in_flight() > 0 {
        // A server with a core for this thread would poll both without a pause.
        match jobs.recv_timeout(Duration::from_micros(100)) {
            Ok(job) => submit(&mut frontend, job, &mut waiting),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => open = false,
        }
        frontend.poll(|ticket, answer| {
            if let Some(reply) = waiting.remove(&ticket) {
                // Its client may have gone.
                let _ = reply.send(describe(&answer));
            }
        });
    }
}

/// Submits one job, or answers it at once if it can't be.
fn submit(frontend: &mut Frontend, job: Job, waiting: &mut HashMap<Ticket, Sender<String>>) {
    let refusal = match frontend.find_model(&job.model).map(|model| (model.id, &model.signature)) {
        None => format!("error: there is no model {:?}", job.model),
        Some((_, signature)) if signature.input_bytes() != job.input.len() => {
            format!("error: give {} numbers", signature.input_bytes() / size_of::<f32>())
        }
        Some((id, _)) => match frontend.submit(&Ask::one(id), |_, slot| slot.copy_from_slice(&job.input)) {
            Ok(ticket) => {
                waiting.insert(ticket, job.reply);
                return;
            }
            Err(refusal) => format!("error: {refusal}"),
        },
    };
    let _ = job.reply.send(refusal);
}

/// Returns the line for an answer: the model's outputs, and whether they came in time.
fn describe(answer: &Answer<'_>) -> String {
    let output = answer.to_vec();
    let numbers = output.chunks_exact(size_of::<f32>()).map(|bytes| bytes.try_into().map(f32::from_le_bytes));
    let numbers: Vec<f32> = numbers.map(|number| number.expect("chunks are of this size")).collect();
    match answer.outcome {
        Outcome::Good => format!("{numbers:?} in time"),
        Outcome::Late(by) => format!("{numbers:?} late by {:.1} ms", by.as_millis_f64()),
        Outcome::Overdue(by) => format!("given up {:.1} ms after the deadline", by.as_millis_f64()),
        Outcome::Broken => "the engine has broken down".to_owned(),
        Outcome::Bad(ending) => format!("error: {ending:?}"),
    }
}

/// Answers the lines of one connection, one after the other.
fn handle(stream: &TcpStream, jobs: &Sender<Job>) -> std::io::Result<()> {
    let mut writer = stream;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let model = words.next().unwrap_or_default().to_owned();
        let numbers: Result<Vec<f32>, _> = words.map(str::parse).collect();
        let (reply, answer) = channel();
        match numbers {
            Ok(numbers) => {
                let input = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
                let _ = jobs.send(Job { model, input, reply });
            }
            Err(error) => {
                let _ = reply.send(format!("error: {error}"));
            }
        }
        let answer = answer.recv().unwrap_or_else(|_| "error: the engine has stopped".to_owned());
        writeln!(writer, "{answer}")?;
    }
    Ok(())
}

/// Sends some requests over one connection and returns their answers.
fn client(address: SocketAddr) -> std::io::Result<Vec<String>> {
    let mut stream = TcpStream::connect(address)?;
    let mut answers = BufReader::new(stream.try_clone()?).lines();
    let mut lines = Vec::new();
    for number in 0..REQUESTS {
        writeln!(stream, "scores {number} 1 2 3")?;
        lines.extend(answers.next().transpose()?);
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_gets_an_answer_to_each_request() {
        let answers = run().unwrap();
        assert_eq!(answers.len(), CLIENTS);
        for lines in &answers {
            assert_eq!(lines.len(), REQUESTS);
            assert!(lines.iter().all(|line| line.starts_with("[0.0, 0.0] ")), "{lines:?}");
        }
    }
}

//! `symphony ctl`: lists the models on the GPUs of a running server, and has it load and unload
//! their weights.

use super::failure::CommandFailure;
use super::top::read_token;
use crate::top::ServerAddress;
use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::json;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;
use symphony_gpu::counted::plural;

/// The time that the server may take to answer, beside the time for which an action waits: ten
/// times what the weights of the largest models take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The arguments of `ctl`.
#[derive(Args)]
pub(super) struct CtlArguments {
    #[command(subcommand)]
    command: Option<CtlCommand>,
    /// The server's address
    #[arg(long, global = true, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    server: String,
    /// A file with a bearer token that permits admin calls, for a server that requires one
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// What a server is to do.
#[derive(Subcommand)]
enum CtlCommand {
    /// List the GPUs with their pages, and the models on each; so does `ctl` alone
    List,
    /// Copy the weights of a model to GPUs, so that it can run there
    Load(WeightsArguments),
    /// Free the pages of a model's weights on GPUs; its batches that run are finished first
    Unload(WeightsArguments),
}

/// The arguments of `load` and `unload`.
#[derive(Args)]
struct WeightsArguments {
    /// The model's name
    model: String,
    /// The GPU's number, as `list` shows it; all GPUs of the model if it is left out
    #[arg(long, value_name = "N")]
    gpu: Option<u32>,
    /// The model's version; all of them if it is left out
    #[arg(long, value_name = "V")]
    version: Option<u64>,
    /// Seconds from now within which it has to begin; it is cancelled if it could not
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds)]
    within: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=3_600.0).contains(seconds));
    seconds.ok_or_else(|| "it must be a number of seconds from 0 to 3600".to_owned())
}

/// The answer to `GET /v2/gpus`.
#[derive(Deserialize)]
struct GpuList {
    gpus: Vec<GpuEntry>,
}

#[derive(Deserialize)]
struct GpuEntry {
    gpu: u32,
    name: String,
    page_bytes: u64,
    pages: u32,
    free: u32,
    shared: u32,
    lost: Option<String>,
    models: Vec<GpuModelEntry>,
}

#[derive(Deserialize)]
struct GpuModelEntry {
    model: String,
    version: u64,
    pages: u32,
    state: String,
}

/// The answer to a load or an unload.
#[derive(Deserialize)]
struct DoneList {
    done: Vec<String>,
}

/// Does what the command line says.
///
/// Errors: a wrong URL or token, exit code 2; a server that can't be reached or refuses, exit code
/// 1.
pub(super) fn ctl(arguments: CtlArguments) -> Result<(), CommandFailure> {
    let CtlArguments { command, server, token_file } = arguments;
    let token = token_file.as_deref().map(read_token).transpose()?.unwrap_or_default();
    let server = ServerAddress::new(&server, token.trim()).map_err(CommandFailure::Input)?;
    let text = match command.unwrap_or(CtlCommand::List) {
        CtlCommand::List => {
            let list: GpuList = call(&server, ("GET", "/v2/gpus"), "", PATIENCE)?;
            table(&list)
        }
        CtlCommand::Load(order) => change(&server, "load", &order)?,
        CtlCommand::Unload(order) => change(&server, "unload", &order)?,
    };
    // A reader that closes the pipe needs no more output.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn change(server: &ServerAddress, change: &str, order: &WeightsArguments) -> Result<String, CommandFailure> {
    let WeightsArguments { model, gpu, version, within } = order;
    let model = percent_encoding::utf8_percent_encode(model, percent_encoding::NON_ALPHANUMERIC);
    let mut body = json!({ "within_ms": (within * 1e3) as u64 });
    for (key, value) in [("gpu", gpu.map(u64::from)), ("version", *version)] {
        if let Some(value) = value {
            body[key] = json!(value);
        }
    }
    let path = format!("/v2/gpus/models/{model}/{change}");
    let patience = PATIENCE + Duration::from_secs_f64(*within);
    let DoneList { done } = call(server, ("POST", &path), &body.to_string(), patience)?;
    Ok(done.into_iter().map(|line| line + "\n").collect())
}

/// Makes a call and reads its answer.
fn call<T: for<'a> Deserialize<'a>>(
    server: &ServerAddress,
    call: (&str, &str),
    body: &str,
    patience: Duration,
) -> Result<T, CommandFailure> {
    let answer = server.call(call, body, patience).map_err(CommandFailure::Run)?;
    if let Some(why) = answer.refusal() {
        return Err(CommandFailure::Run(why));
    }
    serde_json::from_str(&answer.body).map_err(|error| {
        let (address, path) = (server.address(), call.1);
        CommandFailure::Run(format!(
            "http://{address}{path} is not what this version of ctl expects: {error}"
        ))
    })
}

/// Returns the lines of a list.
fn table(list: &GpuList) -> String {
    if list.gpus.is_empty() {
        return "the server has no GPU of kind \"cuda\", whose weights come and go\n".to_owned();
    }
    let mut text = String::new();
    for GpuEntry { gpu, name, page_bytes, pages, free, shared, lost, models } in &list.gpus {
        let megabytes = *page_bytes as f64 / 1e6;
        let _ = writeln!(
            text,
            "GPU {gpu}: {name}: {pages} pages of {megabytes:.1} MB, {free} free, {shared} shared by all models"
        );
        if let Some(why) = lost {
            let _ = writeln!(text, "  taken out: {why}");
        }
        let width = models.iter().map(|of| of.model.chars().count()).max().unwrap_or(0);
        for GpuModelEntry { model, version, pages, state } in models {
            let plural = plural(u64::from(*pages));
            let _ = writeln!(text, "  {model:width$}  version {version}  {pages:4} page{plural:1}  {state}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_line_for_each_gpu_and_for_each_model_on_it() {
        let body = json!({ "gpus": [{
            "gpu": 1, "name": "fake GPU", "page_bytes": 16 << 20, "pages": 60, "free": 3, "shared": 5,
            "lost": null, "models": [
                { "model": "vgg", "version": 1, "pages": 9, "held": 9, "state": "loaded" },
                { "model": "bert-base", "version": 2, "pages": 1, "held": 0, "state": "unloaded" },
            ],
        }] });
        let list: GpuList = serde_json::from_value(body).unwrap();
        assert_eq!(
            table(&list),
            "GPU 1: fake GPU: 60 pages of 16.8 MB, 3 free, 5 shared by all models\n  \
             vgg        version 1     9 pages  loaded\n  \
             bert-base  version 2     1 page   unloaded\n"
        );
        assert!(table(&GpuList { gpus: Vec::new() }).contains("no GPU"));
    }
}

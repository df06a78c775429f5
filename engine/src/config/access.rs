//! The table `[api]` of CONFIG, the flags that say the same, and the file of tokens that it names:
//! who may ask the server for what, and where. `serve` and `check` read the files that it names; on
//! SIGHUP `serve` reads them again.

use super::diagnostics::{Diagnostic, Diagnostics, Location};
use super::reader::{Bounds, Table, Value, read};
use crate::api::tls::Tls;
use crate::api::tokens::{Fingerprint, Rate, TokenGrant};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Tokens in a file.
const MAX_TOKENS: usize = 65_536;

/// Characters of a token: fewer could be guessed, and more do not fit in a head.
const TOKEN_LENGTH: std::ops::RangeInclusive<usize> = 16..=4_096;

/// Calls a second.
const RPS: Bounds = Bounds::above(0.0, 1e9);

/// Calls at once that a token may make if the file does not say how many: those of a second, and no
/// fewer than this.
const LEAST_BURST: f64 = 1.0;

/// Who may ask for what, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessConfig {
    /// Where admin calls are answered.
    pub admin: Option<SocketAddr>,
    /// The certificates and the private key to speak TLS with.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The file of tokens.
    pub tokens: Option<PathBuf>,
}

impl AccessConfig {
    /// The table `[api]`.
    pub(super) fn read(root: &Table<'_>) -> Option<AccessConfig> {
        root.section("api", |table| {
            let admin = table.optional("admin").map_or(Some(None), |value| read_address(&value).map(Some));
            let cert = read_file(table, "tls_cert", "the PEM file of certificates");
            let key = read_file(table, "tls_key", "the PEM file of the private key");
            let tokens = read_file(table, "tokens", "the TOML file of tokens")?;
            let tls = match (cert?, key?) {
                (None, None) => None,
                (Some(cert), Some(key)) => Some((cert, key)),
                (Some(_), None) => {
                    table.report("tls_cert", "is given without `tls_key`", "add the private key's PEM file");
                    return None;
                }
                (None, Some(_)) => {
                    table.report("tls_key", "is given without `tls_cert`", "add the certificates' PEM file");
                    return None;
                }
            };
            Some(AccessConfig { admin: admin?, tls, tokens })
        })
    }

    /// This, but for what `flags`, the command line's, say.
    pub fn with(&self, flags: &AccessConfig) -> AccessConfig {
        AccessConfig {
            admin: flags.admin.or(self.admin),
            tls: flags.tls.clone().or_else(|| self.tls.clone()),
            tokens: flags.tokens.clone().or_else(|| self.tokens.clone()),
        }
    }

    /// Where admin calls are answered if the server listens at `addresses`: where it says, else on
    /// loopback if one of them is not, and else nowhere besides.
    pub fn admin_beside(&self, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        let open = addresses.iter().any(|addr| !addr.ip().is_loopback());
        // Whoever lets the system choose a port runs several servers on one machine, most likely.
        let port = if addresses.iter().any(|addr| addr.port() == 0) { 0 } else { 8002 };
        self.admin.or_else(|| open.then(|| SocketAddr::from(([127, 0, 0, 1], port))))
    }

    /// The certificate and the key, where there is one.
    ///
    /// Errors: they can't be used.
    pub fn load_tls(&self) -> Result<Option<Tls>, Diagnostics> {
        let load = |(cert, key): &(PathBuf, PathBuf)| {
            Tls::load(cert, key).map_err(|error| {
                let location = Location { file: error.file, line: 1, field: "PEM".into() };
                Diagnostics(vec![location.diagnostic(error.what, error.right)])
            })
        };
        self.tls.as_ref().map(load).transpose()
    }

    /// The tokens, where there is a file of them.
    ///
    /// Errors: every diagnostic in it.
    pub fn load_tokens(&self) -> Result<Option<Vec<TokenGrant>>, Diagnostics> {
        self.tokens.as_deref().map(read_tokens).transpose()
    }
}

fn read_address(value: &Value<'_>) -> Option<SocketAddr> {
    let right = "an address and a port, like \"127.0.0.1:8002\"";
    let address = value.text(right)?.parse().ok();
    if address.is_none() {
        value.refuse_value(right);
    }
    address
}

/// A file beside CONFIG, if one is named.
fn read_file(table: &Table<'_>, name: &'static str, right: &str) -> Option<Option<PathBuf>> {
    let Some(value) = table.optional(name) else { return Some(None) };
    value.text(right).map(|file| Some(table.folder().join(file)))
}

/// The tokens in the TOML file at `path`: docs/security.md.
///
/// Errors: every diagnostic in it.
pub fn read_tokens(path: &Path) -> Result<Vec<TokenGrant>, Diagnostics> {
    let tokens = read(path, |root| {
        let tokens = root.tables("tokens", 1, |table| Some((table.location("name"), read_token(table)?)));
        if tokens.len() > MAX_TOKENS {
            let wrong = format!("{} tokens are too many", tokens.len());
            root.report("tokens", wrong, format!("give at most {MAX_TOKENS}"));
        }
        report_twins(root, &tokens);
        Some(tokens)
    })?;
    Ok(tokens.into_iter().map(|(_, token)| token).collect())
}

fn read_token(table: &Table<'_>) -> Option<TokenGrant> {
    let name = table.required("name", "what the token is called in errors and logs");
    let name = name.and_then(|value| value.text("a name").map(str::to_owned));
    let fingerprint = read_fingerprint(table);
    let models =
        table.optional("models").map_or_else(|| Some(vec!["*".to_owned()]), |value| read_models(&value));
    let rps = table.optional("rate_rps").map_or(Some(None), |value| value.number(RPS).map(Some));
    let burst =
        table.optional("burst").map_or(Some(None), |value| value.integer(1..=1_000_000_000).map(Some));
    let admin = table.optional("admin").map_or(Some(false), |value| value.truth());
    let (rps, burst) = (rps?, burst?);
    if rps.is_none() && burst.is_some() {
        table.report("burst", "is given without `rate_rps`", "add the calls a second, or leave it out");
        return None;
    }
    let rate = rps.map(|rps| {
        let otherwise = rps.max(LEAST_BURST).min(f64::from(u32::MAX)) as u32;
        Rate { rps, burst: burst.map_or(otherwise, |burst| burst as u32) }
    });
    Some(TokenGrant { name: name?, fingerprint: fingerprint?, models: models?, rate, admin: admin? })
}

fn read_fingerprint(table: &Table<'_>) -> Option<Fingerprint> {
    let (token, hash) = (table.optional("token"), table.optional("sha256"));
    match (token, hash) {
        (Some(token), None) => {
            let (least, most) = (TOKEN_LENGTH.start(), TOKEN_LENGTH.end());
            let right = format!(
                "{least} to {most} visible characters of ASCII; `openssl rand -hex 32` makes a token"
            );
            let text = token.text(&right)?;
            if !TOKEN_LENGTH.contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
                // It is not repeated: it is a secret.
                token.report("is no token that could be used", format!("it must be {right}"));
                return None;
            }
            Some(Fingerprint::of(text.as_bytes()))
        }
        (None, Some(hash)) => {
            let right = "64 digits of hexadecimal, as `printf %s TOKEN | sha256sum` prints them";
            let bytes = hexadecimal(hash.text(right)?);
            if bytes.is_none() {
                hash.refuse_value(right);
            }
            bytes.map(Fingerprint)
        }
        (Some(_), Some(hash)) => {
            hash.report("is given beside `token`", "give one of them");
            None
        }
        (None, None) => {
            table.report("token", "is missing", "add it, or its hash as `sha256`");
            None
        }
    }
}

fn hexadecimal(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    (digits.len() == 64).then(|| bytes.try_into().ok())?
}

fn read_models(value: &Value<'_>) -> Option<Vec<String>> {
    let items = value.items("it must be a list of models' names, like [\"digits\", \"resnet*\"]")?;
    let names = items.iter().map(|item| item.text("a model's name, in which * stands for any characters"));
    names.map(|name| name.map(str::to_owned)).collect()
}

/// Reports names and tokens that are given twice.
fn report_twins(root: &Table<'_>, tokens: &[(Location, TokenGrant)]) {
    let (mut names, mut prints) = (HashMap::new(), HashMap::new());
    for (location, token) in tokens {
        let twin =
            |first: Option<usize>, wrong: &str| -> Option<Diagnostic> {
                Some(location.diagnostic(
                    format!("{wrong} of line {}", first?),
                    "give each a token and a name of its own",
                ))
            };
        let diagnostics = [
            twin(names.insert(&token.name, location.line), "has the name of the token"),
            twin(prints.insert(token.fingerprint, location.line), "is the token"),
        ];
        diagnostics.into_iter().flatten().for_each(|diagnostic| root.add(diagnostic));
    }
}

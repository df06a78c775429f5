//! Calls to one member of an etcd. Each has a bound on its time, since a member may stand still.

use super::messages::{
    AuthenticateRequest, AuthenticateResponse, EtcdPair, LeaseGrantRequest, LeaseGrantResponse,
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest, LeaseRevokeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};
use crate::config::EtcdConfig;
use futures_util::stream::{self, Stream, StreamExt};
use hyper::http::uri::PathAndQuery;
use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// The longest time of a call.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// What it takes to connect to the members of an etcd.
pub(crate) struct EtcdAccess {
    endpoints: Vec<String>,
    login: Option<AuthenticateRequest>,
    tls: Option<ClientTlsConfig>,
}

impl EtcdAccess {
    /// Reads the files that CONFIG names.
    ///
    /// Errors: one can't be read.
    pub(crate) fn read(config: &EtcdConfig) -> io::Result<EtcdAccess> {
        let read = |path: &Path| {
            let failed = |error| io::Error::other(format!("{} can't be read: {error}", path.display()));
            std::fs::read(path).map_err(failed)
        };
        let login = config.login.as_ref().map(|(name, file)| {
            let password = String::from_utf8_lossy(&read(file)?).trim_end_matches(['\r', '\n']).to_owned();
            io::Result::Ok(AuthenticateRequest { name: name.clone(), password })
        });
        let tls = config.tls.as_ref().map(|files| {
            let authorities = Certificate::from_pem(read(&files.authorities)?);
            let tls = ClientTlsConfig::new().ca_certificate(authorities);
            io::Result::Ok(match &files.identity {
                Some([certificate, key]) => tls.identity(Identity::from_pem(read(certificate)?, read(key)?)),
                None => tls,
            })
        });
        let endpoints = config.endpoints.clone();
        Ok(EtcdAccess { endpoints, login: login.transpose()?, tls: tls.transpose()? })
    }

    /// Returns the members' URLs.
    pub(crate) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }
}

/// A connection to one member.
pub(crate) struct EtcdClient {
    grpc: Grpc<Channel>,
    token: Option<MetadataValue<Ascii>>,
}

/// The reason why a call has no answer.
#[derive(Debug)]
pub(crate) enum EtcdFault {
    /// The token of this connection has expired: another connection gets a new one.
    TokenExpired,
    /// Anything else, as a sentence.
    Lost(String),
}

impl From<Status> for EtcdFault {
    fn from(status: Status) -> EtcdFault {
        let is_expired =
            status.code() == Code::Unauthenticated && status.message().contains("invalid auth token");
        if is_expired { EtcdFault::TokenExpired } else { EtcdFault::Lost(sentence(&status)) }
    }
}

/// Returns what a status says, with its causes.
fn sentence(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Waits for the answer of a member.
async fn in_time<T, E: Into<EtcdFault>>(answer: impl Future<Output = Result<T, E>>) -> Result<T, EtcdFault> {
    match tokio::time::timeout(ANSWERS_WITHIN, answer).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(EtcdFault::Lost(format!("there is no answer within {ANSWERS_WITHIN:?}"))),
    }
}

/// Returns the end of the range of the keys that begin with `prefix`.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // A prefix ends with a slash.
    end.last_mut().into_iter().for_each(|last| *last += 1);
    end
}

impl EtcdClient {
    /// Connects to a member, and logs in where there is a user.
    pub(crate) async fn connect(access: &EtcdAccess, endpoint: &str) -> Result<EtcdClient, EtcdFault> {
        let lost = |error: tonic::transport::Error| {
            let cause = std::error::Error::source(&error).map_or(String::new(), |cause| format!(": {cause}"));
            EtcdFault::Lost(format!("{error}{cause}"))
        };
        let to = Endpoint::from_shared(endpoint.to_owned()).map_err(lost)?.connect_timeout(ANSWERS_WITHIN);
        let is_secure = endpoint.starts_with("https:");
        let to = match access.tls.clone().filter(|_| is_secure) {
            Some(tls) => to.tls_config(tls).map_err(lost)?,
            None => to,
        };
        let channel = in_time(async { to.connect().await.map_err(lost) }).await?;
        let mut client = EtcdClient { grpc: Grpc::new(channel), token: None };
        if let Some(login) = access.login.clone() {
            let AuthenticateResponse { token } =
                client.call("/etcdserverpb.Auth/Authenticate", login).await?;
            let wrong = |_| EtcdFault::Lost("its token is none".to_owned());
            client.token = Some(token.parse().map_err(wrong)?);
        }
        Ok(client)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))
    }

    async fn call<Q, A>(&mut self, path: &'static str, message: Q) -> Result<A, EtcdFault>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let request = self.request(message);
        in_time(async {
            self.ready().await?;
            let answer = self.grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::default());
            answer.await.map(tonic::Response::into_inner)
        })
        .await
    }

    async fn stream<Q, A>(
        &mut self,
        path: &'static str,
        messages: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, EtcdFault>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let request = self.request(messages);
        in_time(async {
            self.ready().await?;
            let answer = self.grpc.streaming(request, PathAndQuery::from_static(path), ProstCodec::default());
            answer.await.map(tonic::Response::into_inner)
        })
        .await
    }

    /// Returns the keys that begin with `prefix`, and the revision at which they were so.
    pub(crate) async fn list(&mut self, prefix: &str) -> Result<(Vec<EtcdPair>, i64), EtcdFault> {
        let request = RangeRequest { key: prefix.into(), range_end: end_of(prefix) };
        let RangeResponse { header, kvs } = self.call("/etcdserverpb.KV/Range", request).await?;
        Ok((kvs, header.unwrap_or_default().revision))
    }

    /// Sets a key under a lease.
    pub(super) async fn put(&mut self, key: &str, value: &str, lease: i64) -> Result<(), EtcdFault> {
        let request = PutRequest { key: key.into(), value: value.into(), lease };
        let PutResponse {} = self.call("/etcdserverpb.KV/Put", request).await?;
        Ok(())
    }

    /// Takes out a lease, and returns its id.
    pub(super) async fn grant(&mut self, lease: Duration) -> Result<i64, EtcdFault> {
        let request = LeaseGrantRequest { ttl: lease.as_secs_f64().ceil() as i64 };
        let LeaseGrantResponse { id, error } = self.call("/etcdserverpb.Lease/LeaseGrant", request).await?;
        if error.is_empty() { Ok(id) } else { Err(EtcdFault::Lost(error)) }
    }

    /// Gives a lease back: its keys go with it.
    pub(super) async fn revoke(&mut self, id: i64) -> Result<(), EtcdFault> {
        let LeaseRevokeResponse {} =
            self.call("/etcdserverpb.Lease/LeaseRevoke", LeaseRevokeRequest { id }).await?;
        Ok(())
    }

    /// Keeps a lease, and returns whether there still is one.
    pub(super) async fn keep_alive(&mut self, id: i64) -> Result<bool, EtcdFault> {
        let request = stream::iter([LeaseKeepAliveRequest { id }]);
        let mut answers = self.stream("/etcdserverpb.Lease/LeaseKeepAlive", request).await?;
        let answer: Option<LeaseKeepAliveResponse> = in_time(answers.message()).await?;
        answer
            .map(|answer| answer.ttl > 0)
            .ok_or_else(|| EtcdFault::Lost("it has ended the stream".to_owned()))
    }

    /// Watches the keys that begin with `prefix`, from this revision on.
    pub(super) async fn watch(
        &mut self,
        prefix: &str,
        start_revision: i64,
    ) -> Result<Streaming<WatchResponse>, EtcdFault> {
        let create_request =
            WatchCreateRequest { key: prefix.into(), range_end: end_of(prefix), start_revision };
        // The watch lasts as long as this side of the stream is open.
        let requests = stream::iter([WatchRequest { create_request: Some(create_request) }]);
        self.stream("/etcdserverpb.Watch/Watch", requests.chain(stream::pending())).await
    }
}

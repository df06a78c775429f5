//! A cluster's authority, and the certificates of its hosts.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use symphony_transport::tcp::LinkTls;

/// The name in every host's certificate.
pub(crate) const NAME: &str = "links.example.internal";

/// An authority of its own.
pub(crate) struct Cluster {
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Cluster {
    pub(crate) fn new() -> Cluster {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Cluster { authority }
    }

    /// Makes a host with a certificate of its own.
    pub(crate) fn host(&self) -> LinkTls {
        self.host_of(&[])
    }

    /// Makes a host whose certificate names these roles.
    pub(crate) fn host_of(&self, roles: &[&str]) -> LinkTls {
        let key = KeyPair::generate().unwrap();
        let of_roles = roles.iter().map(|role| format!("{role}.{NAME}"));
        let params = CertificateParams::new(of_roles.chain([NAME.to_owned()]).collect::<Vec<_>>()).unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        let (certificate, key) = (certificate.pem(), key.serialize_pem());
        LinkTls::new(certificate.as_bytes(), key.as_bytes(), self.authority.pem().as_bytes(), NAME).unwrap()
    }
}

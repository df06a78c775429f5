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
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        let (certificate, key) = (certificate.pem(), key.serialize_pem());
        LinkTls::new(certificate.as_bytes(), key.as_bytes(), self.authority.pem().as_bytes(), NAME).unwrap()
    }
}

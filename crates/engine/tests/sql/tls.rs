//! Certificates for a server that speaks TLS.

use std::path::Path;
use std::process::Command;

/// Makes an authority, `ca`, a certificate of it for this machine, `server`, and another authority, `other`.
pub(crate) fn certificates(folder: &Path, owner: &str) {
    let sign = |name: &str, more: &[&str]| {
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
        command.args(["-days", "2", "-subj", &format!("/CN={name}"), "-keyout", &format!("{name}.key")]);
        command.args(["-out", &format!("{name}.crt")]).args(more);
        let made = command.current_dir(folder).output().unwrap_or_else(|error| {
            panic!("cannot run openssl: {error}; `make test` installs what the tests need")
        });
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    sign("ca", &[]);
    sign("other", &[]);
    let leaf = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"];
    sign("server", &[["-CA", "ca.crt", "-CAkey", "ca.key"].as_slice(), &leaf].concat());
    if rustix::process::geteuid().is_root() {
        let owned =
            Command::new("chown").args([owner, "server.key", "server.crt"]).current_dir(folder).status();
        assert!(owned.unwrap().success());
    }
}

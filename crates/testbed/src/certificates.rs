//! Certificates for a server that speaks TLS.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::store::run;

/// Makes an authority, `ca`, a certificate of it for this machine, `server`, and another authority, `other`. The server
/// runs as `owner` if root starts it.
///
/// # Errors
/// When there is no `openssl`.
pub fn certificates(folder: &Path, owner: &str) -> Result {
    let at = |name: &str, end: &str| folder.join(format!("{name}.{end}"));
    let sign = |name: &str, more: &[&str]| {
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
        command.args(["-days", "2", "-subj", &format!("/CN={name}"), "-keyout"]).arg(at(name, "key"));
        run(command.arg("-out").arg(at(name, "crt")).args(more))
    };
    sign("ca", &[])?;
    sign("other", &[])?;
    let leaf = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"];
    let (ca, key) = (at("ca", "crt").display().to_string(), at("ca", "key").display().to_string());
    sign("server", &[["-CA", &ca, "-CAkey", &key].as_slice(), &leaf].concat())?;
    if rustix::process::geteuid().is_root() {
        run(Command::new("chown").arg(owner).args([at("server", "key"), at("server", "crt")]))?;
    }
    Ok(())
}

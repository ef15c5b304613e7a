//! As much of the protocol of PostgreSQL as it takes to insert a row: a lean client, to measure the server.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

/// A server that says nothing for so long has stopped.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const PROTOCOL_3: u32 = 196_608;
const READY: u8 = b'Z';
const REFUSED: u8 = b'E';
const AUTHENTICATION: u8 = b'R';

/// A connection as `postgres`, whom a private server trusts.
#[derive(Debug)]
pub(super) struct Postgres {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
}

impl Postgres {
    /// # Errors
    /// When the server does not let us in.
    pub(super) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        let mut client = Self { stream: BufReader::new(stream), out: Vec::new() };
        counted(&mut client.out, |out| {
            out.extend_from_slice(&PROTOCOL_3.to_be_bytes());
            out.extend_from_slice(b"user\0postgres\0database\0postgres\0\0");
        });
        client.finish()?;
        Ok(client)
    }

    /// Runs a statement; rows that it answers are passed over.
    ///
    /// # Errors
    /// When the server refuses it.
    pub(super) fn run(&mut self, sql: &str) -> Result<()> {
        self.message(b'Q', |out| text(out, sql));
        self.finish()
    }

    /// Prepares a statement that [`Postgres::execute`] runs by its name.
    ///
    /// # Errors
    /// When the server refuses it.
    pub(super) fn prepare(&mut self, name: &str, sql: &str) -> Result<()> {
        self.message(b'P', |out| {
            text(out, name);
            text(out, sql);
            out.extend_from_slice(&[0, 0]);
        });
        self.message(b'S', |_| {});
        self.finish()
    }

    /// Runs a prepared statement with the bytes of each parameter, in a transaction of its own.
    ///
    /// # Errors
    /// When the server refuses it.
    pub(super) fn execute(&mut self, name: &str, values: &[&[u8]]) -> Result<()> {
        let count = u16::try_from(values.len())?;
        self.message(b'B', |out| {
            text(out, "");
            text(out, name);
            // All parameters are binary, and there are so many.
            out.extend_from_slice(&[0, 1, 0, 1]);
            out.extend_from_slice(&count.to_be_bytes());
            for bytes in values {
                out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
                out.extend_from_slice(bytes);
            }
            out.extend_from_slice(&[0, 0]);
        });
        self.message(b'E', |out| {
            text(out, "");
            out.extend_from_slice(&[0; 4]);
        });
        self.message(b'S', |_| {});
        self.finish()
    }

    fn message(&mut self, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
        self.out.push(kind);
        counted(&mut self.out, body);
    }

    /// Sends what was gathered, and reads until the server is ready for more.
    fn finish(&mut self) -> Result<()> {
        self.stream.get_mut().write_all(&self.out)?;
        self.out.clear();
        let mut refused = None;
        loop {
            let mut head = [0; 5];
            self.stream.read_exact(&mut head)?;
            let [kind, length @ ..] = head;
            let Some(length) = (u32::from_be_bytes(length) as usize).checked_sub(4) else {
                bail!("a message shorter than its length");
            };
            let mut body = vec![0; length];
            self.stream.read_exact(&mut body)?;
            match kind {
                READY => break,
                REFUSED => refused = Some(refusal(&body)),
                AUTHENTICATION => ensure!(body == [0; 4], "the server wants a password"),
                _ => {}
            }
            // Before the first statement nothing follows a refusal.
            if let Some(why) = refused.take_if(|why| why.starts_with("FATAL")) {
                bail!(why);
            }
        }
        match refused {
            Some(why) => bail!(why),
            None => Ok(()),
        }
    }
}

/// A length that counts itself, and what it is the length of.
fn counted(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}

/// The severity and the message: fields that begin with a letter and end with a zero.
fn refusal(body: &[u8]) -> String {
    let field = |letter: u8| {
        let mut fields = body.split(|byte| *byte == 0);
        let found = fields.find_map(|field| field.strip_prefix(&[letter]));
        found.map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
    };
    format!("{}: {}", field(b'S'), field(b'M'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_counts_itself() {
        let mut out = vec![b'Q'];
        counted(&mut out, |out| text(out, "ab"));
        assert_eq!(out, b"Q\0\0\0\x07ab\0");
    }

    #[test]
    fn a_refusal_is_told_in_the_words_of_the_server() {
        let body = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0";
        assert_eq!(refusal(body), "FATAL: the database system is starting up");
    }
}

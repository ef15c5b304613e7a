//! As much of the protocol of MySQL and MariaDB as it takes to insert a row: a lean client, to measure the server.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// A server that says nothing for so long has stopped.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Longer ones are split, and none of ours is.
const PACKET_BYTES_MAX: usize = (1 << 24) - 2;

/// LONG_PASSWORD, PROTOCOL_41, TRANSACTIONS, SECURE_CONNECTION, PLUGIN_AUTH.
const CAPABILITIES: u32 = 0x0008_a201;
const UTF8MB4: u8 = 45;
const COM_QUERY: u8 = 0x03;
const COM_STMT_PREPARE: u8 = 0x16;
const COM_STMT_EXECUTE: u8 = 0x17;
const TYPE_BLOB: u8 = 0xfc;

/// A connection as `root`, who has no password on a private server.
#[derive(Debug)]
pub(super) struct MySql {
    stream: BufReader<TcpStream>,
    sequence: u8,
    out: Vec<u8>,
}

/// A prepared statement whose parameters are all bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Statement(u32);

impl MySql {
    /// # Errors
    /// When the server does not let us in.
    pub(super) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        let mut client = Self { stream: BufReader::new(stream), sequence: 0, out: Vec::new() };
        let greeting = client.receive()?;
        ensure!(greeting.first() == Some(&10), "not a greeting: {}", refusal(&greeting));
        let mut reply = Vec::new();
        reply.extend_from_slice(&CAPABILITIES.to_le_bytes());
        reply.extend_from_slice(&u32::MAX.to_le_bytes());
        reply.push(UTF8MB4);
        reply.extend_from_slice(&[0; 23]);
        reply.extend_from_slice(b"root\0\0mysql_native_password\0");
        client.send(|out| out.extend_from_slice(&reply))?;
        client.expect_ok()?;
        Ok(client)
    }

    /// Runs a statement that answers without rows.
    ///
    /// # Errors
    /// When the server refuses it.
    pub(super) fn run(&mut self, sql: &str) -> Result<()> {
        self.sequence = 0;
        self.send(|out| {
            out.push(COM_QUERY);
            out.extend_from_slice(sql.as_bytes());
        })?;
        self.expect_ok()
    }

    /// # Errors
    /// When the server refuses it.
    pub(super) fn prepare(&mut self, sql: &str, parameters: usize) -> Result<Statement> {
        self.sequence = 0;
        self.send(|out| {
            out.push(COM_STMT_PREPARE);
            out.extend_from_slice(sql.as_bytes());
        })?;
        let answer = self.receive()?;
        ensure!(answer.first() == Some(&0), "{sql}: {}", refusal(&answer));
        let id = answer.get(1..5).context("a short answer")?;
        // What each parameter is, and that it was the last.
        for _ in 0..=parameters {
            self.receive()?;
        }
        Ok(Statement(u32::from_le_bytes(id.try_into()?)))
    }

    /// Runs a prepared statement with the bytes of each parameter.
    ///
    /// # Errors
    /// When the server refuses it.
    pub(super) fn execute(&mut self, statement: Statement, values: &[&[u8]]) -> Result<()> {
        self.sequence = 0;
        self.send(|out| {
            out.push(COM_STMT_EXECUTE);
            out.extend_from_slice(&statement.0.to_le_bytes());
            // No cursor, one round, nothing is NULL, and here come the types.
            out.extend_from_slice(&[0, 1, 0, 0, 0]);
            out.resize(out.len() + values.len().div_ceil(8), 0);
            out.push(1);
            values.iter().for_each(|_| out.extend_from_slice(&[TYPE_BLOB, 0]));
            for bytes in values {
                write_length(out, bytes.len());
                out.extend_from_slice(bytes);
            }
        })?;
        self.expect_ok()
    }

    fn expect_ok(&mut self) -> Result<()> {
        let answer = self.receive()?;
        ensure!(answer.first() == Some(&0), "{}", refusal(&answer));
        Ok(())
    }

    fn send(&mut self, body: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        self.out.clear();
        self.out.extend_from_slice(&[0; 4]);
        body(&mut self.out);
        let length = self.out.len() - 4;
        ensure!(length <= PACKET_BYTES_MAX, "{length} bytes are too long for one packet");
        self.out[..3].copy_from_slice(&(length as u32).to_le_bytes()[..3]);
        self.out[3] = self.sequence;
        Ok(self.stream.get_mut().write_all(&self.out)?)
    }

    fn receive(&mut self) -> Result<Vec<u8>> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head)?;
        self.sequence = head[3].wrapping_add(1);
        head[3] = 0;
        let length = u32::from_le_bytes(head) as usize;
        if length == 0 {
            bail!("an empty packet");
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }
}

/// A length in as few bytes as the protocol has for it.
fn write_length(out: &mut Vec<u8>, length: usize) {
    let bytes = (length as u64).to_le_bytes();
    match length {
        0..=250 => out.push(bytes[0]),
        251..=0xffff => {
            out.push(0xfc);
            out.extend_from_slice(&bytes[..2]);
        }
        0x1_0000..=0xff_ffff => {
            out.push(0xfd);
            out.extend_from_slice(&bytes[..3]);
        }
        _ => {
            out.push(0xfe);
            out.extend_from_slice(&bytes);
        }
    }
}

/// What an answer says that is not what was hoped for: a number, a state, and text.
fn refusal(answer: &[u8]) -> String {
    match answer {
        [0xff, _, _, b'#', _, _, _, _, _, text @ ..] | [0xff, _, _, text @ ..] => {
            String::from_utf8_lossy(text).into_owned()
        }
        _ => format!("an answer that begins with {:?}", &answer[..answer.len().min(4)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_take_as_few_bytes_as_they_need() {
        let written = |length| {
            let mut out = Vec::new();
            write_length(&mut out, length);
            out
        };
        assert_eq!(written(250), [250]);
        assert_eq!(written(251), [0xfc, 251, 0]);
        assert_eq!(written(0x1_0002), [0xfd, 2, 0, 1]);
    }

    #[test]
    fn a_refusal_is_told_in_the_words_of_the_server() {
        assert_eq!(refusal(b"\xff\x15\x04#28000Access denied"), "Access denied");
        assert_eq!(refusal(b"\xff\x10\x04Too many connections"), "Too many connections");
        assert_eq!(refusal(b"\xfe"), "an answer that begins with [254]");
    }
}

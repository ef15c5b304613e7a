//! A wire that understands HTTP: a test sees every request, and decides what becomes of it and of its answer.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request, as far as a test is interested.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    /// The path and the query.
    pub path: String,
    head: String,
}

impl Asked {
    /// Whether it has a header of this name, which is written in lower case.
    pub fn has(&self, header: &str) -> bool {
        self.head.lines().any(|line| line.to_ascii_lowercase().starts_with(&format!("{header}:")))
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    /// It takes so long to get there.
    PassAfter(Duration),
    /// It does not arrive, and this is the answer.
    Say(u16),
    /// It does not arrive, and the answer is a listing of nothing.
    SayNothingThere,
    /// It arrives and is done, and this is the answer all the same.
    DoThenSay(u16),
    /// It arrives and is done, and the connection breaks.
    DoThenCut,
}

type Rule = dyn FnMut(&Asked) -> Fate + Send;

/// The wire. Connect to [`Front::port`] instead of the server.
pub struct Front {
    port: u16,
    shared: Arc<State>,
}

struct State {
    server: u16,
    rule: Mutex<Box<Rule>>,
    asked: Mutex<Vec<Asked>>,
    ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Front {
    pub fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(State {
            server,
            rule: Mutex::new(Box::new(|_| Fate::Pass)),
            asked: Mutex::default(),
            ended: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.ended.load(SeqCst) {
                    return;
                }
                accepting.open.lock().unwrap().push(client.try_clone().unwrap());
                let serving = Arc::clone(&accepting);
                std::thread::spawn(move || {
                    // Whatever ends it, both ends are closed.
                    let _ = serving.serve(&client);
                    let _ = client.shutdown(Shutdown::Both);
                });
            }
        });
        Self { port, shared }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Decides about every request from now on.
    pub fn rule(&self, rule: impl FnMut(&Asked) -> Fate + Send + 'static) {
        *self.shared.rule.lock().unwrap() = Box::new(rule);
    }

    /// The next request that fits has this fate; all others pass.
    pub fn once(&self, fits: impl Fn(&Asked) -> bool + Send + 'static, fate: Fate) {
        let mut left = true;
        self.rule(move |asked| {
            if left && fits(asked) {
                left = false;
                fate
            } else {
                Fate::Pass
            }
        });
    }

    /// All requests since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.shared.asked.lock().unwrap())
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
        for stream in self.shared.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the thread that accepts.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

impl State {
    fn serve(&self, client: &TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(("127.0.0.1", self.server))?;
        // Otherwise what is sent in two parts takes 40 ms.
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (mut requests, mut answers) = (BufReader::new(client), BufReader::new(&server));
        loop {
            let head = read_head(&mut requests)?;
            let mut words = head.split(' ').map(str::to_owned);
            let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let body = read_body(&mut requests, &head)?;
            let asked = Asked { method, path, head };
            let fate = (self.rule.lock().unwrap())(&asked);
            self.asked.lock().unwrap().push(asked.clone());
            match fate {
                Fate::Say(status) => say(client, status, EXPLANATION)?,
                Fate::SayNothingThere => say(client, 200, EMPTY)?,
                Fate::PassAfter(time) => std::thread::sleep(time),
                Fate::Pass | Fate::DoThenSay(_) | Fate::DoThenCut => {}
            }
            if matches!(fate, Fate::Say(_) | Fate::SayNothingThere) {
                continue;
            }
            (&server).write_all(asked.head.as_bytes())?;
            (&server).write_all(&body)?;
            let head = read_head(&mut answers)?;
            let none = asked.method == "HEAD" || head.starts_with("HTTP/1.1 204");
            let body = if none { Vec::new() } else { read_body(&mut answers, &head)? };
            match fate {
                Fate::DoThenSay(status) => say(client, status, EXPLANATION)?,
                Fate::DoThenCut => return Ok(()),
                Fate::Pass | Fate::PassAfter(_) | Fate::Say(_) | Fate::SayNothingThere => {
                    let mut client = client;
                    client.write_all(head.as_bytes())?;
                    client.write_all(&body)?;
                }
            }
        }
    }
}

const EXPLANATION: &str = "<Error><Code>Said</Code><Message>by the test</Message></Error>";
const EMPTY: &str = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";

fn say(mut client: &TcpStream, status: u16, body: &str) -> std::io::Result<()> {
    let length = body.len();
    write!(client, "HTTP/1.1 {status} Said\r\nETag: \"said\"\r\nContent-Length: {length}\r\n\r\n{body}")
}

fn read_head(from: &mut impl BufRead) -> std::io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if from.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

/// A body as it was sent: of a given length, or in chunks.
fn read_body(from: &mut impl BufRead, head: &str) -> std::io::Result<Vec<u8>> {
    let lower = head.to_ascii_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = Vec::new();
    if let Some(length) = length {
        body.resize(length, 0);
        from.read_exact(&mut body)?;
    } else if lower.contains("transfer-encoding: chunked") {
        loop {
            let mut line = String::new();
            from.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim(), 16).map_err(std::io::Error::other)?;
            let mut chunk = vec![0; length + 2];
            from.read_exact(&mut chunk)?;
            body.extend(line.as_bytes());
            body.extend(chunk);
            if length == 0 {
                break;
            }
        }
    }
    Ok(body)
}

//! Embeds a server in a program: starts it, uses it from a vfio-user client, stops it, and starts it again.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use bareverbs_serve::{ControlInput, Log, ServeError, ServedDevice, Server, ServerConfig, SharedBuffer};
use bareverbs_sim::DeviceConfig;
use vfio_bindings::bindings::vfio::VFIO_PCI_CONFIG_REGION_INDEX;
use vfio_user::Client;

const TIMEOUT: Duration = Duration::from_secs(60);

fn devices(folder: &Path, lids: &[u16]) -> Vec<ServedDevice> {
    let served = |lid: &u16| ServedDevice { config: DeviceConfig::with_lid(*lid), socket: folder.join(format!("cx{lid}")) };
    lids.iter().map(served).collect()
}

/// Waits until `condition` returns `true`.
fn wait(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns vendor and device ID as a client reads them from configuration space.
fn pci_id(client: &mut Client) -> [u8; 4] {
    let mut id = [0; 4];
    client.region_read(VFIO_PCI_CONFIG_REGION_INDEX, 0, &mut id).unwrap();
    id
}

/// Returns the number of threads of this process whose names begin with `prefix`.
fn threads(prefix: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with(prefix)).count()
}

#[test]
fn a_program_starts_a_server_uses_it_and_starts_it_again() {
    let folder = tempfile::tempdir().unwrap();
    // LIDs that no other test of this process uses, since the names of threads contain them.
    let lids = [0x701, 0x702];
    let names = lids.map(|lid| format!("lid{lid}"));
    for _ in 0..3 {
        let log = SharedBuffer::default();
        let server = Server::start(ServerConfig {
            log: Log::new(Box::new(log.clone())).unwrap(),
            control: Some(ControlInput::Socket(folder.path().join("control"))),
            link: Some(folder.path().join("link")),
            ..ServerConfig::new(devices(folder.path(), &lids))
        })
        .unwrap();
        let mut client = Client::new(&folder.path().join(format!("cx{}", lids[0]))).unwrap();
        assert_eq!(pci_id(&mut client), [0xb3, 0x15, 0x21, 0x10]);
        let stats = lids.map(|lid| server.stats(lid).unwrap());
        assert!(stats.iter().all(|stats| stats.commands == 0) && server.stats(1).is_none());
        assert!(threads(&names[0]) > 0);
        drop(Client::new(&folder.path().join(format!("cx{}", lids[1]))).unwrap());
        wait("the log", || String::from_utf8(log.bytes()).unwrap().contains("lid1794: client gone"));

        let summary = server.stop();
        let ended: Vec<u16> = summary.devices.iter().map(|device| device.lid).collect();
        assert_eq!((ended.as_slice(), summary.stuck.len()), (&lids[..], 0));
        assert!(summary.to_string().starts_with("lid1793: 0 commands, "), "{summary}");
        // The client is hung up, the sockets are gone, and so are the threads.
        let refused = std::thread::spawn(move || client.region_read(VFIO_PCI_CONFIG_REGION_INDEX, 0, &mut [0; 4]).is_err());
        wait("the client", || refused.is_finished());
        assert!(refused.join().unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        wait("threads", || names.iter().chain([&"link".into(), &"control".into()]).all(|name| threads(name) == 0));
    }
}

#[test]
fn a_stopper_ends_a_wait_on_another_thread() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(ServerConfig::new(devices(folder.path(), &[3]))).unwrap();
    let stopper = server.stopper();
    let waiting = std::thread::spawn(move || server.wait());
    assert!(stopper.stop(), "the first time");
    assert_eq!(waiting.join().unwrap().devices.len(), 1);
    assert!(!stopper.stop(), "not the second time");
}

#[test]
fn a_server_that_is_dropped_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    drop(Server::start(ServerConfig::new(devices(folder.path(), &[0x711, 0x712]))).unwrap());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    wait("threads", || threads("lid1809") == 0);
}

#[test]
fn a_server_that_cannot_start_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let start = |devices| Server::start(ServerConfig::new(devices)).map(drop);
    assert!(matches!(start(Vec::new()), Err(ServeError::NoDevices)));
    assert!(matches!(start(devices(folder.path(), &[0])), Err(ServeError::Lid(0))));
    assert!(matches!(start(devices(folder.path(), &[0xbf00])), Err(ServeError::Lid(0xbf00))));
    assert!(matches!(start(devices(folder.path(), &[5, 6, 5])), Err(ServeError::LidTwice(5))));
    let mut managed = devices(folder.path(), &[5, 6, 7]);
    managed.iter_mut().for_each(|device| device.config.managed = true);
    let refused = start(managed).unwrap_err();
    assert!(refused.to_string().contains("no third one"), "{refused}");
    let mut managed = devices(folder.path(), &[5, 6]);
    managed[1].config.managed = true;
    let linked = ServerConfig { link: Some(folder.path().join("link")), ..ServerConfig::new(managed) };
    let refused = Server::start(linked).map(drop);
    assert!(matches!(refused, Err(ServeError::LinkedManaged { lid: 6 })), "{refused:?}");
    let twice =
        devices(folder.path(), &[5, 6]).into_iter().map(|device| ServedDevice { socket: folder.path().join("a"), ..device });
    assert!(matches!(start(twice.collect()), Err(ServeError::Twice(_))));
    // The second socket cannot be created: the first is removed again.
    std::fs::write(folder.path().join("cx8"), "").unwrap();
    assert!(matches!(start(devices(folder.path(), &[7, 8])), Err(ServeError::NotASocket(_))));
    assert!(!folder.path().join("cx7").exists());
}

/// The reply to a line of the control socket.
fn control(path: &Path, line: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).unwrap();
    reply.trim_end().to_owned()
}

#[test]
fn the_control_socket_releases_ports_and_reports_what_the_switch_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let mut devices = devices(folder.path(), &[0x721, 0x722]);
    devices.iter_mut().for_each(|device| (device.config.managed, device.config.m_key) = (true, 7));
    let server =
        Server::start(ServerConfig { control: Some(ControlInput::Socket(path.clone())), ..ServerConfig::new(devices) })
            .unwrap();
    assert_eq!(control(&path, "release 0x721"), "done");
    assert!(
        control(&path, "stats 0x721").contains("frames_received=0 frames_discarded=0 frames_filtered=0 notifications_sent=0")
    );
    server.stop();
}

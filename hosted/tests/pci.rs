//! `devices`, `bind` and `unbind` as processes: output and exit status on a folder with the files of a machine.

#![expect(clippy::unwrap_used, reason = "a test that cannot run its program has failed")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

#[path = "../vfio/src/pci/tests/tree.rs"]
#[expect(unreachable_pub, clippy::panic, clippy::indexing_slicing, reason = "the library's tests use it too")]
mod tree;

use tree::Tree;

const CARD: &str = "0000:01:00.0";
const OTHER: &str = "0000:01:00.1";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a subcommand on a tree. Paths in its output are those of a machine.
fn run(tree: &Tree, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bareverbs"));
    command.args(args).arg("--root").arg(tree.path()).stdin(Stdio::null()).env_remove("SUDO_UID");
    let Output { status, stdout, stderr } = command.output().unwrap();
    let plain = |bytes: &[u8]| text(bytes).replace(tree.path().to_str().unwrap(), "");
    (status.code(), plain(&stdout), plain(&stderr))
}

fn succeed(tree: &Tree, args: &[&str]) -> String {
    let (status, out, err) = run(tree, args);
    assert_eq!((status, err.as_str()), (Some(0), ""), "{args:?}: {out}");
    out
}

/// Runs a subcommand while a simulated kernel reacts to writes to its files.
fn with_kernel<T>(tree: &Tree, run: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                // The last pass comes after the last write of the command.
                let is_last = done.load(Ordering::Acquire);
                files(tree).iter().for_each(|path| take(tree, path));
                if is_last {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let result = run();
        done.store(true, Ordering::Release);
        result
    })
}

/// The files to which the simulated kernel reacts. Those of functions come first, because they are written first.
fn files(tree: &Tree) -> Vec<PathBuf> {
    let below = |folder: &str, files: &[&str]| {
        let entries = fs::read_dir(tree.at(folder)).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|entry| files.iter().map(move |file| entry.join(file)).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let mut all = below("sys/bus/pci/devices", &["driver_override"]);
    all.extend(below("sys/bus/pci/drivers", &["unbind", "bind"]));
    all.push(tree.at("sys/bus/pci/drivers_probe"));
    all
}

fn take(tree: &Tree, path: &PathBuf) {
    // A line is complete with its line feed. Content without one is not a write.
    let written = fs::read_to_string(path).unwrap();
    let Some(value) = written.strip_suffix('\n') else { return };
    if path.ends_with("driver_override") {
        if value.is_empty() {
            tree.react(path, value).unwrap();
        }
    } else {
        fs::write(path, "").unwrap();
        tree.react(path, value).unwrap();
    }
}

fn state(tree: &Tree, address: &str) -> (Option<String>, String) {
    let driver = fs::read_link(tree.at(&format!("sys/bus/pci/devices/{address}/driver"))).ok();
    let driver = driver.and_then(|link| Some(link.file_name()?.to_str()?.to_string()));
    // The simulated kernel may react to the last write a little later.
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let only = tree.read(&format!("sys/bus/pci/devices/{address}/driver_override"));
        if !only.trim().is_empty() || Instant::now() > end {
            return (driver, only.trim().into());
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn bound(driver: &str, only: &str) -> (Option<String>, String) {
    (Some(driver.into()), only.into())
}

#[test]
fn a_machine_without_a_card_says_so() {
    let tree = Tree::new();
    assert_eq!(succeed(&tree, &["devices"]), "no mlx5 function in this machine\n");
    assert_eq!(succeed(&tree, &["devices", "--json"]), "[]\n");
}

#[test]
fn the_table_has_a_line_a_function_and_the_remedies_below() {
    let tree = Tree::new();
    let card = tree.card(CARD, 5);
    card.interface("ens1f0np0", 0x1003).rdma("mlx5_0", "uverbs0").file("numa_node", "1\n").file("class", "0x020000\n");
    tree.function(OTHER, 0x8086, 0x1234, 0x04_0300, "snd_hda_intel").group(5).driver("snd_hda_intel");
    tree.card("0000:02:00.0", 6).vfio(6);
    tree.function("0000:03:00.0", 0x15b3, 0x0218, 0xff_0000, "").group(7);
    let got = succeed(&tree, &["devices", "--memory", "0"]);
    assert_eq!(
        got,
        "\
ADDRESS       NAME                    PORT        DRIVER     GROUP  NUMA  LINK                             INTERFACES
0000:01:00.0  ConnectX-7              Ethernet    mlx5_core  5      1     16.0 GT/s x8 (of 32.0 GT/s x16)  ens1f0np0, mlx5_0
    0000:01:00.0 is bound to mlx5_core, not to vfio-pci
      remedy: sudo bareverbs bind 0000:01:00.0
    the machine uses 0000:01:00.0: network interface ens1f0np0 is up
      remedy: sudo ip link set ens1f0np0 down, or sudo bareverbs bind --force 0000:01:00.0
    IOMMU group 5 is not viable: it also has 0000:01:00.1, bound to snd_hda_intel
      remedy: sudo bareverbs bind --group 0000:01:00.0 (takes all of them from their drivers), or another slot for the card
0000:02:00.0  ConnectX-7              InfiniBand  vfio-pci   6      -     16.0 GT/s x8 (of 32.0 GT/s x16)  -
    ready: --device 0000:02:00.0 (InfiniBand port)
0000:03:00.0  ConnectX-7 in recovery  -           -          7      -     -                                -
    0000:03:00.0 is a ConnectX-7 whose firmware did not start (device id 0218: flash recovery)
      remedy: mstflint -d 0000:03:00.0 -i FIRMWARE.bin burn (with the firmware of this card), then power the machine off and on
"
    );
}

#[test]
fn the_json_has_everything() {
    let tree = Tree::new();
    tree.card(CARD, 5).interface("ens1f0np0", 0x1003).file("sriov_numvfs", "1\n");
    tree.function("0000:01:00.2", 0x15b3, 0x101e, 0x02_0000, "mlx5_core").group(6).vfio(6);
    tree.link("sys/bus/pci/devices/0000:01:00.2/physfn", "../0000:01:00.0");
    // A kernel without VFIO cdev support names a file of each function that does not exist.
    for (address, name) in [(CARD, "vfio0"), ("0000:01:00.2", "vfio1")] {
        tree.write(&format!("sys/bus/pci/devices/{address}/vfio-dev/{name}/uevent"), "");
    }
    tree.write("dev/vfio/devices/vfio0", "");
    let got: Value = serde_json::from_str(&succeed(&tree, &["devices", "--json", "--memory", "0"])).unwrap();
    let card = &got[0];
    assert_eq!((&card["address"], &card["name"], &card["kind"]), (&CARD.into(), &"ConnectX-7".into(), &"physical".into()));
    assert_eq!((&card["driver"], &card["iommu_group"]["number"]), (&"mlx5_core".into(), &5.into()));
    assert_eq!((&card["bar0_bytes"], &card["msix_vectors"]), (&(32 << 20).into(), &64.into()));
    assert_eq!((&card["link"]["width"], &card["link"]["max_speed"]), (&8.into(), &"32.0 GT/s PCIe".into()));
    assert_eq!((&card["usable"], &card["obstacles"][0]["code"]), (&false.into(), &"not-bound".into()));
    assert_eq!(card["obstacles"][0]["remedy"], "sudo bareverbs bind 0000:01:00.0");
    assert_eq!((&card["virtual_functions"], &card["interfaces"][0]), (&1.into(), &"ens1f0np0".into()));
    assert_eq!((&card["port"], &got[1]["port"]), (&"InfiniBand".into(), &"Ethernet".into()));
    assert_eq!((&got[1]["kind"], &got[1]["physical_function"]), (&"virtual".into(), &CARD.into()));
    let own_file = card["vfio_device_file"].as_str().unwrap();
    assert!(own_file.ends_with("/dev/vfio/devices/vfio0") && got[1]["vfio_device_file"].is_null(), "{own_file}");
    // Its port is an Ethernet port, which is no obstacle; a BAR without an address is one.
    assert_eq!(got[1]["obstacles"][0]["code"], "bar-too-small");
}

#[test]
fn the_doctor_has_one_line_for_each_obstacle_and_fails_if_there_is_one() {
    let tree = Tree::new();
    let nothing = run(&tree, &["doctor"]);
    assert_eq!(nothing, (Some(1), String::new(), "bareverbs: no mlx5 function in this machine\n".into()));
    tree.card("0000:02:00.0", 6).vfio(6);
    let good = succeed(&tree, &["doctor", "--memory", "0"]);
    assert_eq!(good, "0000:02:00.0  ConnectX-7\n    ready: --device 0000:02:00.0\n");
    tree.card(CARD, 5).interface("eth2", 0x1003).file("sriov_numvfs", "2\n").file("class", "0x020000\n");
    let (status, out, err) = run(&tree, &["doctor", "--memory", "0"]);
    assert_eq!((status, err.as_str()), (Some(1), "bareverbs: 1 of 2 functions cannot be used\n"));
    let lines: Vec<_> = out.lines().take_while(|line| !line.starts_with("0000:02")).collect();
    let [name, obstacles @ ..] = lines.as_slice() else { panic!("{out}") };
    assert_eq!(*name, "0000:01:00.0  ConnectX-7");
    let expected = ["bareverbs bind 0000:01:00.0", "ip link set eth2 down", "sriov_numvfs"];
    assert_eq!(obstacles.len(), expected.len(), "{out}");
    for (line, remedy) in obstacles.iter().zip(expected) {
        let (_, after) = line.split_once("; remedy: ").unwrap();
        assert!(after.contains(remedy), "{remedy} is not the remedy in {line}");
    }
    let (status, out, _) = run(&tree, &["doctor", "--memory", "0", "--json"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &json["ok"], &json["failure"]), (Some(1), &false.into(), &"1 of 2 functions cannot be used".into()));
    let codes: Vec<_> = json["functions"][0]["obstacles"].as_array().unwrap().iter().map(|each| &each["code"]).collect();
    assert_eq!(codes, ["not-bound", "used", "used"]);
    assert_eq!(json["functions"][1]["obstacles"], Value::Array(Vec::new()));
}

#[test]
fn single_functions_can_be_listed() {
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5);
    tree.function("0000:00:1f.3", 0x8086, 0xa348, 0x04_0300, "snd_hda_intel").group(1);
    assert_eq!(succeed(&tree, &["devices", "01:00.0", "--memory", "0"]).lines().count(), 3);
    let got = succeed(&tree, &["devices", "00:1f.3", "--memory", "0"]);
    assert!(got.contains("0000:00:1f.3 is 8086:a348, which is no ConnectX or BlueField that mlx5 drives"), "{got}");
    assert_eq!(
        run(&tree, &["devices", "00:1f.4"]),
        (Some(1), String::new(), "bareverbs: there is no PCI function 0000:00:1f.4\n".into())
    );
}

#[test]
fn an_invalid_address_is_a_mistake_on_the_command_line() {
    let tree = Tree::new();
    for command in ["devices", "bind", "unbind"] {
        let (status, _, err) = run(&tree, &[command, "mlx5_0"]);
        assert_eq!(status, Some(2));
        assert!(err.contains("is no PCI address") && err.contains("0000:01:00.0"), "{err}");
    }
    assert_eq!(run(&tree, &["bind"]).0, Some(2));
}

#[test]
fn a_dry_run_shows_the_commands_and_does_nothing() {
    let tree = Tree::new();
    tree.card(CARD, 5);
    tree.remove("sys/bus/pci/drivers/vfio-pci");
    let got = succeed(&tree, &["bind", "--dry-run", CARD]);
    assert_eq!(
        got,
        "\
modprobe vfio-pci  # the driver that hands functions to user space
echo vfio-pci > /sys/bus/pci/devices/0000:01:00.0/driver_override  # vfio-pci alone may have the function
echo 0000:01:00.0 > /sys/bus/pci/drivers/mlx5_core/unbind  # mlx5_core lets go of the function
echo 0000:01:00.0 > /sys/bus/pci/drivers_probe  # the kernel looks for a driver: vfio-pci
"
    );
    assert_eq!(state(&tree, CARD), bound("mlx5_core", "(null)"));
    let json: Value = serde_json::from_str(&succeed(&tree, &["bind", "--dry-run", "--json", CARD])).unwrap();
    assert_eq!((json.as_array().unwrap().len(), &json[3]["address"]), (4, &CARD.into()));
    assert_eq!(succeed(&tree, &["unbind", "--dry-run", CARD]), "# nothing to do\n");
}

#[test]
fn a_card_is_bound_to_vfio_and_unbound() {
    let tree = Tree::new();
    tree.card(CARD, 5);
    let got = with_kernel(&tree, || succeed(&tree, &["bind", "--memory", "0", "01:00.0"]));
    let want = "0000:01:00.0: bound to vfio-pci (was bound to mlx5_core), IOMMU group 5\n    ready: --device 0000:01:00.0 (InfiniBand port)\n";
    assert_eq!(got, want);
    assert_eq!(state(&tree, CARD), bound("vfio-pci", "vfio-pci"));
    let again = succeed(&tree, &["bind", CARD]);
    assert!(again.starts_with("0000:01:00.0: bound to vfio-pci (as before), IOMMU group 5\n"), "{again}");
    assert!(succeed(&tree, &["devices", "--memory", "0"]).contains("ready"));
    let got = with_kernel(&tree, || succeed(&tree, &["unbind", CARD]));
    assert_eq!(got, "0000:01:00.0: given back, bound to mlx5_core\n");
    assert_eq!(succeed(&tree, &["unbind", CARD]), "0000:01:00.0: was not bound to vfio-pci, but to mlx5_core\n");
}

#[test]
fn a_card_with_an_ethernet_port_is_bound_and_said_to_be_good() {
    let tree = Tree::new();
    tree.card(CARD, 5).file("class", "0x020000\n");
    let got = with_kernel(&tree, || succeed(&tree, &["bind", "--memory", "0", CARD]));
    let ready = "\n    ready: --device 0000:01:00.0 (Ethernet port, which is good: the driver has RoCEv2 and frames on it)\n";
    assert!(got.ends_with(ready), "{got}");
}

#[test]
fn the_members_of_a_group_are_bound_and_unbound() {
    let tree = Tree::new();
    tree.card(CARD, 5);
    tree.function(OTHER, 0x8086, 0x1234, 0x04_0300, "snd_hda_intel").group(5).driver("snd_hda_intel");
    let alone = with_kernel(&tree, || succeed(&tree, &["bind", CARD]));
    assert!(alone.contains("IOMMU group 5 is not viable: it also has 0000:01:00.1, bound to snd_hda_intel"), "{alone}");
    let json = with_kernel(&tree, || succeed(&tree, &["bind", "--group", "--json", CARD]));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["changed"], &json[1]["changed"]), (&false.into(), &true.into()));
    assert_eq!((&json[1]["was"], &json[1]["driver"]), (&"snd_hda_intel".into(), &"vfio-pci".into()));
    with_kernel(&tree, || succeed(&tree, &["unbind", "--group", CARD]));
    assert_eq!((state(&tree, CARD).0, state(&tree, OTHER).0), (Some("mlx5_core".into()), Some("snd_hda_intel".into())));
}

/// Asserts that a change is refused: exit status 1, this text, and no file is changed.
fn refused(tree: &Tree, args: &[&str], sentence: &str) {
    let before = state(tree, CARD);
    let (status, out, err) = run(tree, args);
    assert_eq!((status, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.starts_with("bareverbs: ") && err.contains(sentence), "{sentence:?} is not in {err:?}");
    assert_eq!(err.matches(sentence).count(), 1, "it is reported once: {err}");
    assert_eq!(state(tree, CARD), before);
}

#[test]
fn refusals_name_the_reason_and_the_remedy() {
    let tree = Tree::new();
    let card = tree.card(CARD, 5).interface("eth2", 0x1003);
    refused(&tree, &["bind", "09:00.0"], "there is no PCI function 0000:09:00.0");
    refused(
        &tree,
        &["bind", CARD],
        "the machine uses 0000:01:00.0: network interface eth2 is up; --force takes it all the same",
    );
    refused(&tree, &["bind", "--dry-run", CARD], "network interface eth2 is up");
    tree.route("eth2");
    refused(&tree, &["bind", CARD], "the machine's default route goes through eth2");
    tree.remove("sys/bus/pci/devices/0000:01:00.0/iommu_group");
    refused(&tree, &["bind", "--force", CARD], "no IOMMU translates the DMA of 0000:01:00.0");
    card.file("device", "0x0218\n");
    refused(&tree, &["bind", "--force", CARD], "flash recovery); remedy: mstflint");
    card.file("device", "0x1021\n");
}

#[test]
fn a_function_that_is_not_of_mlx5_is_not_unbound() {
    let tree = Tree::new();
    tree.card(CARD, 5);
    tree.function("0000:00:00.0", 0x8086, 0x29c0, 0x06_0000, "").group(1);
    for command in ["bind", "unbind"] {
        refused(&tree, &[command, "00:00.0"], "0000:00:00.0 is 8086:29c0, which is no ConnectX or BlueField that mlx5 drives");
    }
}

#[test]
fn under_sudo_the_limits_are_those_of_the_calling_user() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5);
    let group = tree.at("dev/vfio/5");
    for path in [&group, &tree.at("dev/vfio/vfio")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o660)).unwrap();
    }
    let gid = fs::metadata(&group).unwrap().gid();
    fs::create_dir_all(tree.at("etc")).unwrap();
    let devices = |members: &str| {
        fs::write(tree.at("etc/group"), format!("other:x:77:ada\nvfio:x:{gid}:{members}\n")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_bareverbs"));
        command.args(["devices", "--memory", "0", "--root"]).arg(tree.path()).stdin(Stdio::null());
        command.envs([("SUDO_UID", "54321"), ("SUDO_GID", "54321"), ("SUDO_USER", "ada")]);
        text(&command.output().unwrap().stdout)
    };
    let got = devices("bob");
    assert!(got.contains("dev/vfio/5 ") && got.contains("remedy: sudo chown $USER "), "{got}");
    let got = devices("bob,ada");
    assert!(got.contains("ready: --device 0000:01:00.0"), "{got}");
}

#[test]
fn a_card_that_a_process_has_open_is_not_unbound() {
    let tree = Tree::new();
    tree.card(CARD, 5).vfio(5);
    tree.process(4711, "testpmd", "dev/vfio/5");
    refused(
        &tree,
        &["unbind", CARD],
        "IOMMU group 5 is in use by process 4711 (testpmd); remedy: end process 4711 (testpmd) by its own means",
    );
    assert!(
        succeed(&tree, &["devices"])
            .contains("IOMMU group 5 is in use by process 4711 (testpmd)\n      remedy: end process 4711 (testpmd)")
    );
}

#[test]
fn force_binds_a_card_that_is_in_use() {
    let tree = Tree::new();
    tree.card(CARD, 5).interface("eth2", 0x1003);
    with_kernel(&tree, || succeed(&tree, &["bind", "--force", CARD]));
    assert_eq!(state(&tree, CARD), bound("vfio-pci", "vfio-pci"));
}

#[test]
fn modules_of_this_machine_are_not_loaded_for_another_one() {
    let tree = Tree::new();
    tree.card(CARD, 5);
    tree.remove("sys/bus/pci/drivers/vfio-pci");
    refused(&tree, &["bind", CARD], "modprobe vfio-pci: vfio-pci is not loaded for a folder that is not this machine's root");
}

#[test]
fn a_step_that_times_out_is_undone() {
    let tree = Tree::new();
    tree.card(CARD, 5);
    // The kernel reacts to no write, neither of the bind nor of the restoration.
    let (status, _, err) = run(&tree, &["bind", "--wait", "1", CARD]);
    assert_eq!(status, Some(1));
    assert!(err.contains("no 0000:01:00.0 bound to no driver after 1 s, it is bound to mlx5_core"), "{err}");
    let driver = fs::read_link(tree.at("sys/bus/pci/devices/0000:01:00.0/driver")).unwrap();
    assert!(driver.ends_with("mlx5_core"));
}

#[test]
fn ctrl_c_restores_the_former_state() {
    let tree = Tree::new();
    tree.card(CARD, 5);
    let mut child = Command::new(env!("CARGO_BIN_EXE_bareverbs"))
        .args(["bind", CARD, "--json", "--root"])
        .arg(tree.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command waits for a driver that does not release the function.
    let end = Instant::now() + Duration::from_secs(30);
    while tree.read("sys/bus/pci/drivers/mlx5_core/unbind").is_empty() {
        assert!(Instant::now() < end && child.try_wait().unwrap().is_none(), "the unbind is not reached");
        thread::sleep(Duration::from_millis(1));
    }
    // The driver never releases the function. The write is undone here, because on a kernel a write to sysfs returns only after
    // the driver has released it, and so never takes effect after the program restores the state.
    fs::write(tree.at("sys/bus/pci/drivers/mlx5_core/unbind"), "").unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = with_kernel(&tree, || child.wait_with_output().unwrap());
    assert_eq!(output.status.code(), Some(130));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let failure = document.get("failure").and_then(Value::as_str).unwrap();
    assert!(failure.contains(": interrupted"), "{document}");
    assert_eq!(text(&output.stderr), format!("bareverbs: {failure}\n"));
    assert_eq!(document.get("interrupted"), Some(&Value::Bool(true)), "{document}");
    assert_eq!(state(&tree, CARD), bound("mlx5_core", "(null)"));
}

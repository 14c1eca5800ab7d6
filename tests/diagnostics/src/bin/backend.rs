//! Verbs of what is no backend, and what only backends may do.
//~ error: `Card` is not the backend of a device
//~ note: the backend for ConnectX is `bareverbs_mlx5::Mlx5`, of a `Platform` and a number of pages
//~ error: `Card` is not the backend of a device, and only that opens rings
//~ error: `String` is not the error of a backend
//~ error: `Card` is not the queues of completion events of a backend
//~ error: `Card` does not say where its bytes lie for the device
struct Card;

fn verbs<P: bareverbs::backend::Provider>(_: P) {}
fn error<E: bareverbs::error::DeviceError>(_: E) {}
fn events<E: bareverbs::backend::CompletionEvents>(_: E) {}
fn place<M: bareverbs::platform::AddressMap>(_: M) {}

fn main() {
    verbs(Card);
    let _ = bareverbs::platform::RingToken::of(&Card);
    error(String::new());
    events(Card);
    place(Card);
}

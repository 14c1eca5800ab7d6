//! Nothing: this package only pins a dependency.

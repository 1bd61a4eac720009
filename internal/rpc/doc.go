// Package rpc has the thin adapters between Connect and the commands: decode, run, encode. Only this package and the
// client use protobuf. The methods of the services are documented in the .proto files.
package rpc

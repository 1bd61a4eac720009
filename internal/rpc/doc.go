// Package rpc has the thin adapters between Connect and the commands: decode, run, encode. Only this package and
// clients convert protobuf messages. The response of a mutation is rendered in its batch, by mutation.render in
// flow.GuardedCommand.Apply; encodeResponse gives the bytes that a request key records, and mutation.result reads them.
// TransferBatch records ids instead (toRecord, fromRecord), and approvals record a response without a request key. The
// methods of the services are documented in the .proto files.
package rpc

// Package crash contains only tests, which drive real server processes over Connect, with callers that retry
// with the same key. Servers and Postgres are killed, connections break, and databases move. No acknowledged
// result may be lost, and nothing may happen twice.
package crash

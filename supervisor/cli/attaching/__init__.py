"""What ``stoker attach`` watches: a log, a folder of logs, a process, a pipe."""

"""The one place that starts the Java virtual machine of a process, and calls into it.

Rules that were learnt from trials, each with a test:

1. One machine per process: it cannot be started twice, so whoever needs it calls :func:`start_jvm` and gets the same.
2. ``-Xrs``, or the machine takes SIGTERM and SIGINT for itself, and neither handlers nor ``finally`` run.
3. A process that is forked after the start must not touch Java: it would hang for good.  :func:`java` refuses there;
   start further processes with ``spawn`` or ``subprocess``.
4. It is small: an application master is to fit into 512 MB, with room.
5. It outlives Python's interpreter, for what Hadoop leaves behind never ends.  A thread that comes out of Java when the
   interpreter has ended, or destructors that run beside Java's, abort the process: :func:`_end` sees to the end.

Every call into Java stands in a block of :func:`java_errors`, so that no Java exception leaves the bridge.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from zipimport import zipimporter

from eps.errors import ConfigError, EpsError, ResourceError
from eps.hadoop.conf import NOT_SET, HadoopConf, environment_configuration
from eps.hadoop.errors import HadoopPlace, JavaError, explain
from eps.hadoop.kerberos import java_options

logger = logging.getLogger(__name__)

#: Beside the site files: the class path of the cluster's jars, in one line.
CLASS_PATH_FILE = "eps-classpath.txt"
CLASS_PATH_VARIABLE = "EPS_HADOOP_CLASSPATH"
#: More than a submission or an application master has ever needed.
HEAP_MB = 128
_ASK_HADOOP_S = 60.0
_LOG4J = "log4j.properties"
#: Packages that Hadoop up to 3.4 reaches into; later ones need none of it.
_OPENED = ("java.lang", "java.lang.reflect", "java.net", "java.util", "java.util.concurrent")
_MOST_CAUSES = 12
#: At the end of the process threads that are in Java may come out: most answers of a cluster are there by then.
_LEAVE_S = 5.0


class _Inside:
    """The threads that are in Java: from :meth:`close` on none gets in any more.  Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        #: Thread -> how many blocks of :func:`java_errors` it is in.
        self._blocks: Counter[int] = Counter()
        self._closed_by = 0

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Count the calling thread for a block; one that comes too late stays here until the process ends."""
        me = threading.get_ident()
        with self._changed:
            while self._closed_by not in (0, me) and me not in self._blocks:
                self._changed.wait()
            self._blocks[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._blocks[me] -= 1
                if not self._blocks[me]:
                    del self._blocks[me]
                    self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Let nobody but the calling thread in any more, and wait until all others are out, ``timeout_s`` at most."""
        self._closed_by = threading.get_ident()
        with self._changed:
            if not self._changed.wait_for(lambda: not self._blocks.keys() - {self._closed_by}, timeout_s):
                logger.warning("%d threads are still in Java after %g s: not waited for", len(self._blocks), timeout_s)


_inside = _Inside()
_lock = threading.Lock()
_started_by_pid = 0


def jvm_options(heap_mb: int = HEAP_MB) -> list[str]:
    """Return the options of the Java virtual machine."""
    return [
        f"-Xmx{heap_mb}m",
        "-Xms16m",
        "-Xss512k",
        "-XX:+UseSerialGC",
        # The second compiler would cost memory for code that runs for seconds.
        "-XX:TieredStopAtLevel=1",
        "-XX:ReservedCodeCacheSize=32m",
        "-XX:-UsePerfData",
        "-Xrs",
        "-XX:+IgnoreUnrecognizedVMOptions",
        "-Djava.net.preferIPv4Stack=true",
        f"-Dlog4j.configuration={_log4j_url()}",
        *java_options(os.environ),
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    ]


def _log4j_url() -> str:
    """Return where Java finds the rules for its log, which are beside this file: in a container, within an archive."""
    path, loader = Path(__file__).with_name(_LOG4J), sys.modules[__name__].__loader__
    if not isinstance(loader, zipimporter):
        return path.as_uri()
    return f"jar:{Path(loader.archive).absolute().as_uri()}!/{path.relative_to(loader.archive)}"


def class_path(conf: HadoopConf) -> list[str]:
    """Return the class path of Hadoop's clients: the configuration's folder, and the jars.

    The jars are those that the first of these names: the file ``eps-classpath.txt`` beside the configuration,
    ``EPS_HADOOP_CLASSPATH``, the command ``hadoop classpath --glob``.

    Raises
    ------
    ConfigError
        There is no configuration, or nothing says where the jars are.
    """
    if not conf.source:
        raise ConfigError(NOT_SET)
    jars = _jars(Path(conf.source))
    return [conf.source, *(entry for entry in jars.strip().split(os.pathsep) if entry)]


def _jars(conf_dir: Path) -> str:
    beside = conf_dir / CLASS_PATH_FILE
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    if given := os.environ.get(CLASS_PATH_VARIABLE, ""):
        return given
    home = os.environ.get("HADOOP_HOME", "")
    for command in (shutil.which("hadoop"), shutil.which("yarn"), f"{home}/bin/hadoop" if home else None):
        if command is not None and os.access(command, os.X_OK):
            return _asked(command)
    raise ConfigError(
        f"nothing says where Hadoop's jars are: put the command hadoop on the PATH, set HADOOP_HOME, or put the class "
        f"path into {CLASS_PATH_VARIABLE} or {beside}"
    )


def _asked(command: str) -> str:
    words = [command, "classpath", "--glob"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_ASK_HADOOP_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{' '.join(words)} does not say where Hadoop's jars are: {error}") from None
    if done.returncode or not done.stdout.strip():
        words_said = done.stderr.strip().rpartition("\n")[2]
        raise ConfigError(f"{' '.join(words)} ended with code {done.returncode}: {words_said}")
    return done.stdout


def start_jvm(conf: HadoopConf | None = None) -> None:
    """Start the Java virtual machine of this process, if it is not there; handlers of signals stay as they are.

    Parameters
    ----------
    conf : HadoopConf, optional
        Default: that of ``HADOOP_CONF_DIR``.  A machine that is there keeps the class path that it was started with.

    Raises
    ------
    ConfigError
        The extra ``yarn`` is not installed, there is no Java, or it does not find Hadoop's classes.
    ResourceError
        This process was forked from one whose machine was started before.
    """
    global _started_by_pid
    try:
        import jpype
        import jpype.config
    except ImportError as error:
        raise ConfigError(f"YARN needs the package jpype1 ({error}): pip install '.[yarn]' in EPS's folder") from None
    _refuse_forked()
    with _lock:
        if jpype.isJVMStarted():
            return
        conf = conf if conf is not None else environment_configuration()
        path = class_path(conf)
        try:
            jpype.startJVM(*jvm_options(), classpath=path, convertStrings=False, interrupt=False)
        except jpype.JVMNotFoundException:
            raise ConfigError("there is no Java: install a JDK of version 17 or 21, or set JAVA_HOME to it") from None
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"Java cannot be started: {error}") from None
        _started_by_pid = os.getpid()
        # What waits for Java's own end would wait for threads that Hadoop leaves behind.
        jpype.config.destroy_jvm = False
        atexit.register(_end)
        try:
            version = str(jpype.JClass("org.apache.hadoop.util.VersionInfo").getVersion())
            jpype.JClass("org.apache.hadoop.yarn.client.api.AMRMClient")
        except (TypeError, jpype.JException) as error:
            # Of a class that is not there, JPype says so with a TypeError.
            raise ConfigError(f"{conf.source} does not lead to Hadoop's classes: {error}") from None
    logger.info("Java with Hadoop %s", version)


def _refuse_forked() -> None:
    if _started_by_pid not in (0, os.getpid()):
        raise ResourceError(
            "this process was forked from one in which Java runs, and cannot use it: start it with spawn or subprocess"
        )


@cache
def _java(name: str, pid: int) -> Any:
    import jpype

    _refuse_forked()
    return jpype.JClass(name)


def java(name: str) -> Any:
    """Return a Java class; the machine must be there.

    Raises
    ------
    ResourceError
        This process was forked from the one in which Java runs.
    """
    return _java(name, os.getpid())


# Of Java's methods, many differ in the kind of number only: Python's are made into the kind that is meant.


def jint(value: int) -> Any:
    """Return a Java ``int``."""
    import jpype

    return jpype.JInt(value)


def jshort(value: int) -> Any:
    """Return a Java ``short``."""
    import jpype

    return jpype.JShort(value)


def jlong(value: int) -> Any:
    """Return a Java ``long``."""
    import jpype

    return jpype.JLong(value)


def jfloat(value: float) -> Any:
    """Return a Java ``float``."""
    import jpype

    return jpype.JFloat(value)


def jbool(value: bool) -> Any:
    """Return a Java ``boolean``."""
    import jpype

    return jpype.JBoolean(value)


def jbytes(value: bytes) -> Any:
    """Return a Java ``byte[]`` with a copy of ``value``."""
    import jpype

    return jpype.JArray(jpype.JByte)(value)


def jarray(kind: Any, values: Sequence[Any]) -> Any:
    """Return an array of Java objects."""
    import jpype

    return jpype.JArray(kind)(list(values))


@contextmanager
def java_errors(
    doing: str, place: HadoopPlace | None = None, otherwise: Callable[[str], EpsError] = ResourceError
) -> Iterator[None]:
    """Turn a Java exception of the block into an error of ours; its stack goes to the log.

    Parameters
    ----------
    doing : str
        What is attempted, for the message: ``the application cannot be submitted``.
    place : HadoopPlace, optional
        Whose addresses the message may name.
    otherwise : callable
        Makes the error where nothing is known of the exception.

    Raises
    ------
    EpsError
        See :func:`eps.hadoop.errors.explain`; as of :func:`java` in a forked process.
    """
    import jpype

    # First: a lock that a thread held when this process was forked is never free here.
    _refuse_forked()
    with _inside.noted():
        try:
            yield
        except jpype.JException as error:
            logger.info("%s: %s", doing, error.stacktrace())
            raise explain(_chain(error), doing, place or HadoopPlace(), otherwise) from None


def _chain(error: Any) -> list[JavaError]:
    found: list[JavaError] = []
    while error is not None and len(found) < _MOST_CAUSES:
        name = str(error.getClass().getName())
        if name == "org.apache.hadoop.ipc.RemoteException":
            # What it was at the other end.
            name = str(error.getClassName())
        found.append(JavaError(name, str(error.getMessage() or "")))
        error = error.getCause()
    return found


def place_of(conf: HadoopConf) -> HadoopPlace:
    """Return what messages may say of a configuration."""
    settings = {name: conf.get(name) for name in conf.values}
    return HadoopPlace(conf.source, {name: value for name, value in settings.items() if ":" in value})


def _end() -> None:
    """Close what Hadoop has open, and let no thread meet an interpreter that has ended."""
    if _started_by_pid != os.getpid():
        return
    _inside.close(_LEAVE_S)
    with suppress(Exception):
        java("org.apache.hadoop.fs.FileSystem").closeAll()
    with suppress(Exception):
        # A thread of JPype has Python collect its garbage whenever Java did so; JPype itself stops it only with Java.
        java("org.jpype.ref.JPypeReferenceQueue").getInstance().stop()
    with suppress(AttributeError):
        # Only glibc has it.  The process ends with its code when Python's part is done, and no library tidies up
        # beneath Java's threads.
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)

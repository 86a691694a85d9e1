"""Start a process's Java virtual machine (JVM) and call into it.

Rules, each with a test:

1. A process has one JVM and cannot start another, so all callers share it (:func:`start_jvm`).
2. Without ``-Xrs`` the JVM handles SIGTERM and SIGINT itself, and neither Python's handlers nor ``finally`` run.
3. A process that was forked after the JVM's start would hang in Java forever.  :func:`java` raises an error there;
   start further processes with ``spawn`` or ``subprocess``.
4. The JVM is small: an application master must fit into 512 MB.
5. The JVM outlives Python's interpreter, since Hadoop's threads never end.  A thread that returns from Java after the
   interpreter's end, or destructors that run beside Java's, would abort the process; :func:`_at_exit` prevents that.

Every call into Java is in a block of :func:`java_errors`, so that no Java exception leaves the bridge.
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

#: File beside the site files with the class path of the cluster's jars, in one line.
CLASS_PATH_FILE = "eps-classpath.txt"
CLASS_PATH_VARIABLE = "EPS_HADOOP_CLASSPATH"
#: Enough for a submission and for an application master.
HEAP_MB = 128
_ASK_HADOOP_S = 60.0
_LOG4J = "log4j.properties"
#: Packages of Java that Hadoop up to 3.4 needs opened.
_OPENED = ("java.lang", "java.lang.reflect", "java.net", "java.util", "java.util.concurrent")
_MOST_CAUSES = 12
#: At the end of the process, longest wait for threads that are inside Java; most calls to a cluster end by then.
_LEAVE_S = 5.0


class _Inside:
    """Counts the threads that are inside Java; after :meth:`close` no other may enter.  Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        #: Thread -> number of blocks of :func:`java_errors` that it is in.
        self._blocks: Counter[int] = Counter()
        self._closed_by = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count the calling thread inside the block; after :meth:`close`, block it until the process ends."""
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
        """Admit only the calling thread from now on, and wait up to ``timeout_s`` until all others have left."""
        self._closed_by = threading.get_ident()
        with self._changed:
            if not self._changed.wait_for(lambda: not self._blocks.keys() - {self._closed_by}, timeout_s):
                logger.warning("%d threads are still in Java after %g s: exiting anyway", len(self._blocks), timeout_s)


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
        # The second compiler needs memory, and this code runs for seconds.
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
    """Return the URL of the log settings beside this file, which is inside an archive in containers."""
    path, loader = Path(__file__).with_name(_LOG4J), sys.modules[__name__].__loader__
    if not isinstance(loader, zipimporter):
        return path.as_uri()
    return f"jar:{Path(loader.archive).absolute().as_uri()}!/{path.relative_to(loader.archive)}"


def class_path(conf: HadoopConf) -> list[str]:
    """Return the class path of Hadoop's clients: the configuration's folder and the jars.

    The jars come from the first of these that exists: the file ``eps-classpath.txt`` beside the configuration,
    ``EPS_HADOOP_CLASSPATH``, the command ``hadoop classpath --glob``.

    Raises
    ------
    ConfigError
        There is no configuration, or none of these.
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
            return _jars_of(command)
    raise ConfigError(
        f"Hadoop's jars were not found: put the command hadoop on the PATH, set HADOOP_HOME, or put the class path "
        f"into {CLASS_PATH_VARIABLE} or {beside}"
    )


def _jars_of(command: str) -> str:
    words = [command, "classpath", "--glob"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_ASK_HADOOP_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{' '.join(words)} does not list Hadoop's jars: {error}") from None
    if done.returncode or not done.stdout.strip():
        words_said = done.stderr.strip().rpartition("\n")[2]
        raise ConfigError(f"{' '.join(words)} exited with code {done.returncode}: {words_said}")
    return done.stdout


def start_jvm(conf: HadoopConf | None = None) -> None:
    """Start this process's JVM unless it runs; Python's signal handlers stay.

    Parameters
    ----------
    conf : HadoopConf, optional
        Default: that of ``HADOOP_CONF_DIR``.  A running JVM keeps its class path.

    Raises
    ------
    ConfigError
        The extra ``yarn`` is not installed, there is no Java, or Java does not find Hadoop's classes.
    ResourceError
        This process was forked from one with a running JVM.
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
        # Destroying the JVM would wait for Hadoop's threads, which never end.
        jpype.config.destroy_jvm = False
        atexit.register(_at_exit)
        try:
            version = str(jpype.JClass("org.apache.hadoop.util.VersionInfo").getVersion())
            jpype.JClass("org.apache.hadoop.yarn.client.api.AMRMClient")
        except (TypeError, jpype.JException) as error:
            # JPype raises a TypeError for a missing class.
            raise ConfigError(f"Hadoop's classes are not on the class path of {conf.source}: {error}") from None
    logger.info("Java with Hadoop %s", version)


def _refuse_forked() -> None:
    if _started_by_pid not in (0, os.getpid()):
        raise ResourceError(
            "this process cannot use Java, since it was forked from one in which Java runs: start it with spawn or "
            "subprocess"
        )


@cache
def _java(name: str, pid: int) -> Any:
    import jpype

    _refuse_forked()
    return jpype.JClass(name)


def java(name: str) -> Any:
    """Return a Java class; :func:`start_jvm` must have been called.

    Raises
    ------
    ResourceError
        This process was forked from one with a running JVM.
    """
    return _java(name, os.getpid())


def _cast(name: str) -> Callable[[Any], Any]:
    """Return the cast to a Java type, which ``jpype`` exports under ``name``."""

    def cast(value: Any) -> Any:
        import jpype

        return getattr(jpype, name)(value)

    return cast


# Many of Java's methods have overloads that differ in the type of a number only; these casts choose the type.
jint = _cast("JInt")
jshort = _cast("JShort")
jlong = _cast("JLong")
jfloat = _cast("JFloat")
jbool = _cast("JBoolean")


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
    """Turn a Java exception inside the block into one of our errors; its stack trace goes to the log.

    Parameters
    ----------
    doing : str
        Beginning of the message: ``the application cannot be submitted``.
    place : HadoopPlace, optional
        Addresses that the message may name.
    otherwise : callable
        Makes the error for an unknown exception.

    Raises
    ------
    EpsError
        See :func:`eps.hadoop.errors.explain`.
    ResourceError
        This process was forked from one with a running JVM.
    """
    import jpype

    # Before any lock: one that a thread held during the fork is never released here.
    _refuse_forked()
    with _inside.entered():
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
            # The class of the exception on the server.
            name = str(error.getClassName())
        found.append(JavaError(name, str(error.getMessage() or "")))
        error = error.getCause()
    return found


def place_of(conf: HadoopConf) -> HadoopPlace:
    """Return the addresses of a configuration, for messages."""
    settings = {name: conf.get(name) for name in conf.values}
    return HadoopPlace(conf.source, {name: value for name, value in settings.items() if ":" in value})


def _at_exit() -> None:
    """Close Hadoop's file systems, and keep threads inside Java away from the ending interpreter."""
    if _started_by_pid != os.getpid():
        return
    _inside.close(_LEAVE_S)
    with suppress(Exception):
        java("org.apache.hadoop.fs.FileSystem").closeAll()
    with suppress(Exception):
        # This JPype thread calls Python's garbage collector after Java's; JPype stops it only with the JVM.
        java("org.jpype.ref.JPypeReferenceQueue").getInstance().stop()
    with suppress(AttributeError):
        # Only glibc has ``on_exit``.  The process exits with its code once Python has finished, before the destructors
        # of libraries that Java's threads still use.
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)
